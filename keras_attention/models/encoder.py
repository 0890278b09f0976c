"""`Encoder`, and the base that it shares with `Decoder`: embeddings, blocks, a norm, logits."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core import tap
from keras_attention.core.hints import Positions, Tensor, Tensors
from keras_attention.layers import kv_cache, traits
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.heads import reuse
from keras_attention.models.embeddings import Embeddings, Logits
from keras_attention.sequences import inputs, masks, sequence

# The arguments of a call that all blocks get as they are given, and all but the inputs.
PAIRS = ("attention_mask", "positions", "segment_ids", "global_mask")
ARGUMENTS = ("types", "mask", "context", "context_mask", "cache", "logits_to_keep", *PAIRS)


class Rows(NamedTuple):
    """Vectors (B, T, D) as the blocks get them, with their masks and their positions."""

    x: Any
    mask: Any
    positions: Any
    global_mask: Any = None
    # The positions for blocks on a grid, where its cells are counted as tokens; or None.
    of_cells: Any = None
    # The order of the tokens, or None where it is that of the inputs.
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
        sources: Sequence[int | None] | None = None,
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
        self.sources = sources
        self._check_sources()
        # Whether an output is of a whole row, so that it has no mask.
        self._pools = logits is not None and logits.pooling is not None
        if self.embeddings is None and self.logits is not None and self.logits.tied:
            raise ValueError(
                "Tied logits need `embeddings`, whose table they multiply by. "
                "Received: embeddings=None"
            )

    def _check_sources(self):
        """Raises unless each block with `reuse` has an earlier one that has what it takes."""
        layers = [block.attention for block in self.blocks]
        self._takes = takes = [getattr(layer, "reuse", None) for layer in layers]
        self._source_of = sources = (None,) * len(takes) if self.sources is None else self.sources
        valid = isinstance(sources, (list, tuple))
        valid = valid and [x is None for x in sources] == [x is None for x in takes]
        for n, source in enumerate(sources if valid else ()):
            if source is not None:
                valid = valid and source in range(n) and takes[source] != "key_value"
                if valid and takes[n] == "key_value":
                    valid = _seen(layers[n]) == _seen(layers[source])
        if not valid:
            raise ValueError(
                "`sources` must have None for blocks without `reuse`, and for others the index of "
                "an earlier block that does not take its own keys and values from another and, for "
                "'key_value', has the same pattern and position. Received: "
                f"sources={self.sources}, for blocks with reuse={takes}"
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
        shape = (shape[0], None if len(shape) > 3 else shape[1], shape[-1])
        for layer in (self.final_norm, self.logits):
            if layer is not None and not layer.built:
                layer.build(shape)

    @functools.cached_property
    def _cells(self):
        """Whether each block attends over cells of a grid, whose positions padding never moves."""
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
        """The `positions` of a call; None becomes "tokens" unless cells of a grid are counted."""
        if positions is None or sequence.word(positions) == "tokens":
            return "tokens" if self._counts else None
        return positions

    def _embed(self, inputs, mask, types, positions, segment_ids, offset, training):
        """The vectors that enter the first block, and their mask."""
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
        """Positions that count real tokens from `offset` (B,) on; None where they are indices."""
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
        """The masks of the vectors and of the inputs, such as pixels, by the `mask` of a call."""
        # Keras passes the mask that inputs carry as `mask` too.
        carried = masks.implicit(inputs)
        vectors = self.embeddings.compute_output_shape(inputs.shape)[:-1]
        of_vectors, of_inputs = None, carried
        if mask is not None and mask is not carried:
            mask = masks.boolean("mask", mask)
            # It may be that of images (B, …), or of a sequence (B, T).
            fits = len(mask.shape) == len(inputs.shape) - 1 > 1
            fits = masks.may_fit(mask, inputs.shape[1]) if len(mask.shape) == 2 else fits
            if not masks.may_fit(mask, vectors[1]) and fits:
                of_inputs = masks.both(carried, mask)
            else:
                masks.check_axes(mask, vectors, "inputs")
                of_vectors = mask
        if carried is not None and masks.may_fit(carried, vectors[1]):
            of_vectors = masks.both(of_vectors, carried)
        return of_vectors, of_inputs

    def _rows(self, x, mask, attention_mask, positions, segment_ids, global_mask):
        """The `Rows` for the blocks, of a call without a cache.

        Blocks count their tokens themselves. Rows are compacted once for all of them, where that
        is the same: arrays of pairs would have to be put in order, and listeners be told of it.
        """
        positions = self._counting(positions)
        given = Rows(x, mask, positions, global_mask)
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
        if global_mask is not None:
            global_mask = order.numbers(masks.boolean("global_mask", global_mask))
        x = order.compacted(x)
        return Rows(x, order.mask, sequence.COMPACTED, global_mask, order=order)

    def _states(self, inputs, context, types, mask, context_mask, pairs, cache, training):
        """Vectors after the blocks, their mask, and caches; `pairs` are arguments of the call."""
        attention_mask, positions, segment_ids, _ = pairs
        offset = None if cache is None else cache[0]["index"]
        if cache is not None:
            # All have read the same tokens: what follows from that is computed once in a program.
            cache = [{**x, "index": offset} if x else x for x in cache]
        x, mask = self._embed(inputs, mask, types, positions, segment_ids, offset, training)
        # A cache counts its own tokens.
        rows = Rows(x, mask, positions) if cache else self._rows(x, mask, *pairs)
        handed: dict[Any, Any] = {}
        x, caches = rows.x, []
        given = {"mask": rows.mask, "attention_mask": attention_mask, "segment_ids": segment_ids}
        given |= {} if rows.global_mask is None else {"global_mask": rows.global_mask}
        for n, (block, cells, of_block, before) in enumerate(self._of_blocks(context, cache)):
            more = {"return_key_value": True} if n in self._source_of else {}
            if self._source_of[n] is not None:
                more["key_value"] = handed[self._source_of[n]]
            x = block(
                x,
                of_block,
                context_mask=None if isinstance(context, (list, tuple)) else context_mask,
                positions=rows.of_cells if cells and rows.of_cells is not None else rows.positions,
                cache=before,
                training=training,
                **given,
                **more,
            )
            x, *rest = x if isinstance(x, tuple) else (x,)
            if n in self._source_of:
                handed[n], *rest = rest
            caches += rest
        x = x if rows.order is None else rows.order.restored(x)
        return _flat(x, 3), _flat(mask, 2), caches

    def _output(self, x, mask, keep=None):
        """The result of a call, of vectors after the blocks: of all, or of the last `keep`."""
        if keep is not None:
            mask = _last(mask, keep)
            x = masks.carry(_last(x, keep), mask)
        if keep == 0 and self.logits is not None:
            # Not by the layer, which would transpose a table for no rows.
            size = self.logits.compute_output_shape(x.shape)[-1]
            return masks.carry(ops.zeros((ops.shape(x)[0], 0, size), x.dtype), mask)
        if self.final_norm is not None:
            x = self.final_norm(x)
        if self.logits is not None:
            x = masks.carry(x, mask) if self._pools else x
            x = self.logits(x, self.embeddings.table) if self.logits.tied else self.logits(x)
        return x if self._pools else masks.carry(x, mask)

    def _of_blocks(self, context, cache):
        """Each block, whether it has cells of a grid, its context, and its cache or None.

        The context is one for all blocks, or the list that `cache_context` returns; Keras then
        passes a list of masks as `context_mask`.
        """
        count = len(self.blocks)
        listed = isinstance(context, (list, tuple))
        contexts = self._of_each_block("context", context) if listed else [context] * count
        return zip(self.blocks, self._cells, contexts, cache or [None] * count, strict=True)

    def _split(self, cache):
        """The caches of the blocks, checked, and the cache of their tokens or None."""
        if cache is not None and self._pools:
            raise ValueError(
                "A call with a `cache` reads a part of a text, but these logits are of all. "
                f"Received: `cache`, and logits with pooling={self.logits.pooling!r}"
            )
        tokens, last = None, cache[-1] if isinstance(cache, (list, tuple)) and cache else None
        if isinstance(last, dict) and "tokens" in last:
            *cache, tokens = cache
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
        if self._pools:
            return None
        if self.embeddings is None:
            return masks.padding(inputs, previous_mask, "inputs")
        mask, of_inputs = self._masks_of(inputs, previous_mask)
        return _flat(masks.both(mask, self.embeddings.compute_mask(inputs, of_inputs)), 2)

    def compute_output_spec(self, *args, **kwargs):
        given = vars(inputs.arguments(self.call, *args, **kwargs))
        x = next(iter(given.values()))
        # The `call` of a subclass may have fewer arguments.
        given = dict.fromkeys(ARGUMENTS) | given
        context, mask = given["context"], given["mask"]
        cache, _ = self._split(given["cache"])
        self._check_types(given["types"])
        self._counting(given["positions"])
        keep, shape = given["logits_to_keep"], self.compute_output_shape(x.shape)
        mask_of_all = None if keep is None else self.compute_mask(x, mask)
        if self.embeddings is None:
            masks.padding(x, mask, "inputs")
        else:
            self._masks_of(x, mask)
            x = self.embeddings.compute_output_spec(x, given["types"])
        of_blocks = {name: given[name] for name in ("context_mask", *PAIRS)}
        if given["global_mask"] is None:
            del of_blocks["global_mask"]
        if isinstance(context, (list, tuple)):
            of_blocks["context_mask"] = None
        for n, (block, _, of_block, before) in enumerate(self._of_blocks(context, cache)):
            handed = reuse.specs(block.attention, x) if self._takes[n] else None
            block.compute_output_spec(x, of_block, cache=before, key_value=handed, **of_blocks)
        output = keras.KerasTensor(shape, self.compute_dtype)
        if keep is not None:
            # Keras gives an output that carries none the mask of all inputs.
            output = masks.carry(_last(output, keep), _last(mask_of_all, keep))
        return output if cache is None else (output, [kv_cache.specs(x) for x in given["cache"]])

    def compute_output_shape(self, inputs_shape, context_shape=None):
        shape = inputs_shape
        if self.embeddings is not None:
            shape = self.embeddings.compute_output_shape(shape)
        batch, *sizes, features = shape
        shape = batch, None if None in sizes else math.prod(sizes), features
        for layer in (self.final_norm, self.logits):
            shape = shape if layer is None else layer.compute_output_shape(shape)
        return tuple(shape)


def _seen(layer):
    """What layers with one cache have in common: the tokens that they see, and encoded keys."""
    at, found = getattr(layer, "position", None), traits.of(layer)
    config = at.get_config() | {"name": None} if at is not None and at.encodes_alone else None
    return found.window, found.merges, config


def _flat(x, axes):
    """Cells of a grid (B, height, width, …) as a sequence (B, T, …) of so many axes, or None."""
    if x is None or len(x.shape) == axes:
        return x
    return ops.reshape(x, (ops.shape(x)[0], -1, *x.shape[len(x.shape) + 2 - axes :]))


def _last(array, keep):
    """The last `keep` columns of an array (B, T, …), or of None."""
    if array is None:
        return None
    return array[:, -keep:] if keep else array[:, :0]


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
        sources: for each block with `reuse`, the index of an earlier one whose keys and values it
            takes, and None for others. With "key_value" both have the same pattern and position.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs: integers (B, T); or vectors (B, T, D) without `embeddings`.
        types: integers (B, T), token types; needs `Embeddings(types=…)`.
        mask: boolean (B, T), True = a real token, or of the inputs where they have another shape,
            such as pixels; combined with the masks that inputs and embeddings carry.
        attention_mask, segment_ids, global_mask: as in `TransformerBlock`.
        positions: how embeddings and blocks count tokens: "tokens", which is the default, by their
            rank among the real tokens of their row (of their text, with `segment_ids`), so that
            padding changes nothing, wherever it is; "places", by their index; or integers (T,) or
            (B, T). If the embeddings or a block have positions or a pattern of a grid, all cells
            are counted instead of tokens, since they stay where they are.
        training: whether to apply dropout.

    Returns:
        (B, T, D), or logits (B, T, vocabulary_size), carrying the mask; or (B, vocabulary_size) of
        `Logits` with `pooling`.

    Raises:
        TypeError: a part is not of its class.
        ValueError: tied logits without embeddings; or as the parts.

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
        global_mask: Tensor | None = None,
    ) -> Tensor:
        pairs = attention_mask, positions, segment_ids, global_mask
        x, mask, _ = self._states(inputs, None, types, mask, None, pairs, None, training)
        return self._output(x, mask)
