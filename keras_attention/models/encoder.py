"""`Encoder`, and the base that it shares with `Decoder`: embeddings, blocks, a norm, logits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core import tap
from keras_attention.core.hints import Positions, Tensor, Tensors
from keras_attention.layers import kv_cache, traits
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.models import history
from keras_attention.models.embeddings import Embeddings, Logits
from keras_attention.sequences import inputs, masks, sequence

# What a call may get beside its inputs, and symbolic calls check.
OF_PAIRS = ("attention_mask", "positions", "segment_ids")
ARGUMENTS = ("types", "mask", "context", "context_mask", "cache", *OF_PAIRS)


class Rows(NamedTuple):
    """What blocks are given of a batch, and the way back.

    Args:
        x, mask: (B, T, D), and boolean (B, T) or None.
        positions: as blocks take them.
        of_cells: those of blocks with cells of a grid, if these are counted as tokens; or None.
        order: the `Order` of the rows; None for that of the inputs.
    """

    x: Any
    mask: Any
    positions: Any
    of_cells: Any = None
    order: sequence.Order | None = None


class Stack(saving.ConfigurableModel, saved=False):
    """Blocks one after another, with what stands before and after them."""

    def __init__(
        self,
        blocks: Sequence[TransformerBlock],
        embeddings: Embeddings | None = None,
        final_norm: keras.layers.Layer | None = None,
        logits: Logits | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.metadata = metadata
        if not isinstance(blocks, (list, tuple)) or not blocks:
            raise TypeError(
                f"`blocks` must be a list of `TransformerBlock`s. Received: blocks={blocks!r}"
            )
        # One block several times shares its weights (ALBERT).
        self.blocks = [saving.check_layer("blocks", x, TransformerBlock) for x in blocks]
        self.embeddings = saving.check_layer("embeddings", embeddings, Embeddings, optional=True)
        self.final_norm = saving.check_layer("final_norm", final_norm, optional=True)
        self.logits = saving.check_layer("logits", logits, Logits, optional=True)
        if self.embeddings is None and self.logits is not None and self.logits.tied:
            raise ValueError(
                "Tied logits need `embeddings`, whose table they multiply by. "
                "Received: embeddings=None"
            )

    def build(self, inputs_shape, context_shape=None):
        shape = inputs_shape
        if self.embeddings is not None:
            if not self.embeddings.built:
                self.embeddings.build(inputs_shape)
            shape = self.embeddings.compute_output_shape(inputs_shape)
        for block in self.blocks:
            if not block.built:
                block.build(shape, context_shape)
        for layer in (self.final_norm, self.logits):
            if layer is not None and not layer.built:
                layer.build(shape)

    @functools.cached_property
    def _cells(self):
        """Of each block, whether it has cells of a grid, which stay where they are."""
        return [traits.of(block.attention).on_grid for block in self.blocks]

    @functools.cached_property
    def _order_matters(self):
        """Whether a block depends on more of its positions than on the order of tokens."""
        found = [block.attention for block in self.blocks if block.attention is not None]
        return any(traits.of(x).needs_positions for x in found)

    @functools.cached_property
    def _counts(self):
        """Whether positions count real tokens. Where one part has cells of a grid, all have."""
        own = None if self.embeddings is None else self.embeddings.positions
        return getattr(own, "counts", True) and not any(self._cells)

    def _counting(self, positions):
        """How tokens are counted: `positions`, or the word for None; None for cells."""
        if positions is None or sequence.word(positions) == "tokens":
            return "tokens" if self._counts else None
        return positions

    def _embed(self, inputs, mask, types, positions, segment_ids, offset, training):
        """The first vectors, and their mask."""
        if types is not None:
            self._check_types(types)
        if self.embeddings is None:
            return inputs, masks.padding(inputs, mask, "inputs")
        mask, of_inputs = self._masks_of(inputs, mask)
        if of_inputs is not masks.implicit(inputs):
            inputs = masks.carry(ops.copy(inputs), of_inputs)

        positions = self._counting(positions)
        if isinstance(positions, str):
            counts = positions == "tokens" and self.embeddings.positions is not None
            positions = self._ranks(inputs, mask, segment_ids, offset) if counts else None
        x = self.embeddings(inputs, types=types, positions=positions, training=training)
        return x, masks.both(mask, masks.implicit(x))

    def _ranks(self, given, mask, segment_ids, offset):
        """The positions of tokens by rank, after `offset` (B,) others or None; None for indices."""
        own = self.embeddings.compute_mask(given, masks.implicit(given))
        vectors = keras.KerasTensor(self.embeddings.compute_output_shape(given.shape))
        texts, _ = inputs.pair("segment_ids", segment_ids, vectors, vectors) or (None, None)
        found = sequence.ranks(masks.both(mask, own), texts)
        if offset is None:
            return found
        return offset[:, None] + (ops.arange(ops.shape(given)[1]) if found is None else found)

    def _check_types(self, types):
        if types is not None and self.embeddings is None:
            raise ValueError(
                "`types` are of `embeddings`, and the stack was made without. "
                f"Received: types.shape={tuple(types.shape)}"
            )

    def _masks_of(self, inputs, mask):
        """The mask of the vectors and that of the inputs, such as pixels, of the `mask` of a call.

        Keras passes the mask that inputs carry as `mask` too.
        """
        carried = masks.implicit(inputs)
        vectors = self.embeddings.compute_output_shape(inputs.shape)[:-1]
        of_vectors, of_inputs = None, carried
        if mask is not None and mask is not carried:
            mask = masks.boolean("mask", mask)
            # It may be that of images (B, …), or of a sequence (B, T).
            fits = len(mask.shape) == len(inputs.shape) - 1 > 1
            if len(mask.shape) == 2:
                fits = masks.may_fit(mask, inputs.shape[1])
            if not masks.may_fit(mask, vectors[1]) and fits:
                of_inputs = masks.both(carried, mask)
            else:
                masks.check_axes(mask, vectors, "inputs")
                of_vectors = mask
        if carried is not None and masks.may_fit(carried, vectors[1]):
            of_vectors = masks.both(of_vectors, carried)
        return of_vectors, of_inputs

    def _rows(self, x, mask, positions, attention_mask, segment_ids):
        """The `Rows` for the blocks, of a call without a cache.

        Blocks count their tokens themselves. Rows are compacted once for all of them, where that
        is the same: arrays of pairs would have to be put in order, and listeners be told of it.
        """
        positions = self._counting(positions)
        given = Rows(x, mask, positions)
        if mask is None or sequence.word(positions) != "tokens":
            return given
        if not (attention_mask is segment_ids is None) or tap.state.listeners:
            return given._replace(of_cells=sequence.ranks(mask)) if any(self._cells) else given
        if not self._order_matters:
            return given
        masks.check_axes(mask, x.shape[:-1], "inputs")
        order = sequence.Order.of(mask, ops.shape(x)[:2])
        if order is None:
            return given._replace(positions=sequence.COMPACTED)
        return Rows(order.compacted(x), order.mask, sequence.COMPACTED, order=order)

    def _read(
        self,
        inputs,
        context=None,
        types=None,
        mask=None,
        context_mask=None,
        attention_mask=None,
        positions=None,
        segment_ids=None,
        cache=None,
        training=None,
    ):
        """The result of a call."""
        offset = None if cache is None else cache[0]["index"]
        x, mask = self._embed(inputs, mask, types, positions, segment_ids, offset, training)
        if cache is None:
            rows = self._rows(x, mask, positions, attention_mask, segment_ids)
        else:
            # A cache counts its own tokens.
            rows = Rows(x, mask, positions)
        x = rows.x
        caches, none = [], [None] * len(self.blocks)
        of_blocks = self._cells, self._contexts(context), cache or none
        for block, cells, of_block, before in zip(self.blocks, *of_blocks, strict=True):
            x = block(
                x,
                of_block,
                mask=rows.mask,
                # Keras passes a list of the masks that a list of caches carries.
                context_mask=None if isinstance(context, (list, tuple)) else context_mask,
                attention_mask=attention_mask,
                positions=rows.of_cells if cells and rows.of_cells is not None else rows.positions,
                segment_ids=segment_ids,
                cache=before,
                training=training,
            )
            if cache is not None:
                x, after = x
                caches.append(after)
        x = x if rows.order is None else rows.order.restored(x)
        if self.final_norm is not None:
            x = self.final_norm(x)
        if self.logits is not None:
            x = self.logits(x, self.embeddings.table) if self.logits.tied else self.logits(x)
        output = masks.carry(x, mask)
        return output if cache is None else (output, caches)

    def _contexts(self, context):
        """The context of each block: one for all, or those of `cache_context`."""
        if not isinstance(context, (list, tuple)):
            return [context] * len(self.blocks)
        return self._of_each_block("context", context)

    def _split(self, cache):
        """The caches of the blocks, checked, and the tokens beside them or None."""
        cache, tokens = history.split(cache)
        return cache if cache is None else self._of_each_block("cache", cache), tokens

    def _of_each_block(self, name, given):
        """Dictionaries of a cache or a context, if there is one for each block."""
        listed = isinstance(given, (list, tuple))
        if not listed or [isinstance(x, dict) for x in given] != [True] * len(self.blocks):
            kinds = [type(x).__name__ for x in given] if listed else type(given).__name__
            raise ValueError(
                f"`{name}` must be a list of one dictionary for each block, as a stack of as many "
                f"blocks makes it. Received: {kinds}, and {len(self.blocks)} blocks"
            )
        return list(given)

    def compute_mask(self, inputs, previous_mask=None):
        if self.embeddings is None:
            return masks.padding(inputs, previous_mask, "inputs")
        mask, of_inputs = self._masks_of(inputs, previous_mask)
        return masks.both(mask, self.embeddings.compute_mask(inputs, of_inputs))

    def compute_output_spec(self, *args, **kwargs):
        given = vars(inputs.arguments(self.call, *args, **kwargs))
        x = next(iter(given.values()))
        # The `call` of a subclass may have fewer arguments.
        given = dict.fromkeys(ARGUMENTS) | given
        context, mask = given["context"], given["mask"]
        cache, _ = self._split(given["cache"])
        contexts = self._contexts(context)
        self._check_types(given["types"])
        self._counting(given["positions"])
        shape = self.compute_output_shape(x.shape)
        if self.embeddings is None:
            masks.padding(x, mask, "inputs")
        else:
            self._masks_of(x, mask)
            x = self.embeddings.compute_output_spec(x, given["types"])
        of_blocks = {name: given[name] for name in ("context_mask", *OF_PAIRS)}
        if isinstance(context, (list, tuple)):
            of_blocks["context_mask"] = None
        none = [None] * len(self.blocks)
        for block, context, before in zip(self.blocks, contexts, cache or none, strict=True):
            block.compute_output_spec(x, context, cache=before, **of_blocks)
        output = keras.KerasTensor(shape, self.compute_dtype)
        return output if cache is None else (output, [kv_cache.specs(x) for x in given["cache"]])

    def compute_output_shape(self, inputs_shape, context_shape=None):
        shape = inputs_shape
        for layer in (self.embeddings, self.logits):
            shape = shape if layer is None else layer.compute_output_shape(shape)
        return tuple(shape)


class Encoder(Stack):
    """A Transformer encoder (Vaswani et al. 2017; BERT): embeddings, blocks, norm, logits.

    A `keras.Model`: train it as it is, or call it in another model.

    Args:
        blocks: the `TransformerBlock`s, each with options of its own. A position such as
            `RelativeBias` that is given to several blocks is one table for all of them; a block
            that is listed several times shares its weights (ALBERT).
        embeddings: an `Embeddings`, or None if the inputs are vectors.
        final_norm: a norm after the last block, which pre-norm blocks need; or None.
        logits: `Logits`, such as those of a masked language model, or None.
        metadata: anything ready for JSON that is saved with the model, such as where it came from.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs: integers (B, T); or vectors (B, T, D) without `embeddings`.
        types: integers (B, T), token types; needs `Embeddings(types=…)`.
        mask: boolean (B, T), True = a real token, or of the inputs where they have another shape,
            such as pixels; combined with the masks that inputs and embeddings carry.
        attention_mask, segment_ids: as in `TransformerBlock`.
        positions: how embeddings and blocks count tokens: "tokens", which is the default, by their
            rank among the real tokens of their row (of their text, with `segment_ids`), so that
            padding changes nothing, wherever it is; "places", by their index; or integers (T,) or
            (B, T). If the embeddings or a block have positions or a pattern of a grid, all cells
            are counted instead of tokens, since they stay where they are.
        training: whether to apply dropout.

    Returns:
        (B, T, D), or logits (B, T, vocabulary_size), carrying the mask.

    Raises:
        TypeError: a part is not of its class.
        ValueError: tied logits without embeddings; or as the parts.

    Example:

    >>> import keras
    >>> from keras_attention import Embeddings, Encoder, ScaledEmbedding, TransformerBlock
    >>> encoder = Encoder(
    ...     [TransformerBlock(32, num_heads=2) for _ in range(2)],
    ...     Embeddings(ScaledEmbedding(100, 16, mask_zero=True)),
    ... )
    >>> encoder(keras.ops.convert_to_tensor([[5, 7, 0]])).shape
    (1, 3, 16)
    """

    def build(self, inputs_shape):  # type: ignore[override]
        super().build(inputs_shape)

    def call(
        self,
        inputs: Tensor,
        types: Tensor | None = None,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Positions | None = None,
        segment_ids: Tensors | None = None,
        training: bool | None = None,
    ) -> Tensor:
        return self._read(
            inputs, None, types, mask, None, attention_mask, positions, segment_ids, None, training
        )
