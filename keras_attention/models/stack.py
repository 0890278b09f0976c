"""`Stack`: the base of `Encoder` and `Decoder`: embeddings, blocks, a norm, logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras

from keras_attention import inputs, masks, saving, sequence, tap
from keras_attention.layers.attention import Attention
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models.embeddings import Embeddings
from keras_attention.models.logits import Logits

ops = keras.ops

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

    def positions_of(self, block):
        """The positions for a block."""
        return self.positions if self.of_cells is None or not _has_cells(block) else self.of_cells

    def restored(self, x):
        """`x` (B, T, D) in the order of the inputs."""
        return x if self.order is None else self.order.restored(x)


class Stack(saving.ConfigurableModel):
    """Blocks one after another, with what stands before and after them."""

    def __init__(
        self, blocks, embeddings=None, final_norm=None, logits=None, metadata=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.metadata = metadata
        self.supports_masking = True
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

    def _build(self, inputs_shape, context_shape=None):
        """Builds the parts."""
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

    @property
    def _counts(self):
        """Whether positions count real tokens. Where one part has cells of a grid, all have."""
        own = None if self.embeddings is None else self.embeddings.positions
        return getattr(own, "counts", True) and not any(map(_has_cells, self.blocks))

    def _counting(self, positions):
        """How tokens are counted: `positions`, or the word for None; None for cells."""
        if positions is None or sequence.word(positions) == "tokens":
            return "tokens" if self._counts else None
        return positions

    def _embed(self, inputs, mask, types, positions, segment_ids, offset, training):
        """The first vectors, and their mask."""
        self._check_types(types)
        if self.embeddings is None:
            return inputs, masks.padding(inputs, mask, "inputs")
        mask, of_inputs = self._masks_of(inputs, mask)
        if of_inputs is not masks.implicit(inputs):
            inputs = masks.carry(ops.copy(inputs), of_inputs)

        def counted(own, length):
            found = sequence.ranks(masks.both(mask, own), self._texts(inputs, segment_ids))
            if offset is None:
                return found
            return offset[:, None] + (ops.arange(length) if found is None else found)

        positions = self._counting(positions)
        if isinstance(positions, str):
            positions = counted if positions == "tokens" else None
        x = self.embeddings(inputs, types=types, positions=positions, training=training)
        return x, masks.both(mask, masks.implicit(x))

    def _texts(self, given, segment_ids):
        """The numbers (B, T) of the texts of the inputs' vectors, or None."""
        like = keras.KerasTensor(self.embeddings.compute_output_shape(given.shape))
        found = inputs.pair("segment_ids", segment_ids, like, like)
        return None if found is None else found[0]

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
            if not masks.may_fit(mask, vectors[1]) and _is_of(mask, inputs):
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
        counts = sequence.word(positions) == "tokens" and mask is not None
        if not counts:
            return given
        if not (attention_mask is segment_ids is None) or tap.listens():
            if any(map(_has_cells, self.blocks)):
                given = given._replace(of_cells=sequence.ranks(mask))
            return given
        if not any(_depends_on_positions(block.attention) for block in self.blocks):
            return given
        masks.check_axes(mask, x.shape[:-1], "inputs")
        order = sequence.Order.of(mask, ops.shape(x)[:2])
        if order is None:
            return given._replace(positions=sequence.COMPACTED)
        return Rows(order.compacted(x), order.mask, sequence.COMPACTED, order=order)

    def _finish(self, x, mask):
        """The output, of the vectors after the last block."""
        if self.final_norm is not None:
            x = self.final_norm(x)
        if self.logits is not None:
            x = self.logits(x, self.embeddings.table) if self.logits.tied else self.logits(x)
        return masks.carry(x, mask)

    def compute_mask(self, inputs, previous_mask=None):
        if self.embeddings is None:
            return masks.padding(inputs, previous_mask, "inputs")
        mask, of_inputs = self._masks_of(inputs, previous_mask)
        return masks.both(mask, self.embeddings.compute_mask(inputs, of_inputs))

    def _given(self, args, kwargs):
        """The arguments of a call; those that the `call` of a subclass does not have are None."""
        given = vars(inputs.arguments(self.call, *args, **kwargs))
        first = next(iter(given.values()))
        return inputs.Given(**{**dict.fromkeys(ARGUMENTS), **given, "inputs": first})

    def _output(self, inputs, mask, contexts=None, caches=None, types=None, **of_blocks):
        """The symbolic output of `inputs`, if every part takes the arguments that it is given.

        `contexts` and `caches` have one for each block, or are None.
        """
        none = [None] * len(self.blocks)
        self._check_types(types)
        self._counting(of_blocks["positions"])
        if self.embeddings is None:
            masks.padding(inputs, mask, "inputs")
        else:
            self._masks_of(inputs, mask)
        x = inputs
        if self.embeddings is not None:
            x = self.embeddings.compute_output_spec(inputs, types)
        parts = zip(self.blocks, contexts or none, caches or none, strict=True)
        for block, context, cache in parts:
            block.compute_output_spec(x, context, cache=cache, **of_blocks)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def compute_output_shape(self, inputs_shape, context_shape=None):
        shape = inputs_shape
        for layer in (self.embeddings, self.logits):
            shape = shape if layer is None else layer.compute_output_shape(shape)
        return tuple(shape)


def _has_cells(block):
    return isinstance(block.attention, Attention) and block.attention._has_cells


def _depends_on_positions(layer):
    """Whether attention may depend on more of its positions than on the order of tokens."""
    return layer is not None and (not isinstance(layer, Attention) or layer._order_matters)


def _is_of(mask, inputs):
    """Whether a mask may be that of inputs: of images (B, …) or of a sequence (B, T)."""
    if len(mask.shape) == 2:
        return masks.may_fit(mask, inputs.shape[1])
    return len(mask.shape) == len(inputs.shape) - 1 > 1
