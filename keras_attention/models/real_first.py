"""Rows with their real tokens first: the blocks of a stack then need no positions to count them.

A position counts the real tokens before it, so padding on the left, or between tokens, moves none.
Given to the blocks as arrays, such positions would cost kernels what they save where positions are
consecutive, a half of the causal scores for one. In rows that have their real tokens first, the
index of a token is its position.
"""

from __future__ import annotations

import contextlib
import threading
from typing import NamedTuple

import keras

from keras_attention import inputs, masks, patterns, shapes
from keras_attention.backend import backend
from keras_attention.hints import Tensor, Tensors
from keras_attention.kernels import folding
from keras_attention.layers.attention import Attention

ops = keras.ops

_state = threading.local()


@contextlib.contextmanager
def off():
    """Within it rows stay as they are, for those who read what is inside a stack."""
    outer = getattr(_state, "off", False)
    _state.off = True
    try:
        yield
    finally:
        _state.off = outer


class Rows(NamedTuple):
    """What blocks are given of a batch, and the way back.

    Args:
        x: (B, T, D).
        mask: boolean (B, T), or None.
        positions: integers, or None for those from 0 on.
        attention_mask, segment_ids: as a stack is called with, in the order of `x`; or None.
        order: None, or (B, T) and (B, T): of each row of `x` its index in the batch, and back.
        asked: whether the positions were asked for by the caller.
    """

    x: Tensor
    mask: Tensor | None
    positions: Tensor | None
    attention_mask: Tensor | None = None
    segment_ids: Tensors | None = None
    order: tuple[Tensor, Tensor] | None = None
    asked: bool = True

    def positions_of(self, block: keras.Layer) -> Tensor | None:
        """The positions for a block. One without weights of pairs takes none, and needs none."""
        takes = block.attention is not None and getattr(block.attention, "has_weights", True)
        return self.positions if self.asked or takes else None

    def restored(self, x: Tensor) -> Tensor:
        """`x` (B, T, D) in the order of the batch."""
        return x if self.order is None else folding.reordered(x, *self.order[::-1])


def counted(length, mask=None, offset=None):
    """Positions that count real tokens alone, (1, T) or (B, T)."""
    count = ops.arange(length, dtype="int32")[None]
    positions = count if mask is None else folding.counted(mask)
    return positions if offset is None else positions + ops.expand_dims(offset, -1)


def depends_on_positions(layer: keras.Layer) -> bool:
    """Whether attention depends on more of its positions than on their order."""
    if not isinstance(layer, Attention) or layer.score.needs_length or _refuses_positions(layer):
        return True
    if layer.position is not None or layer.preset_position is not None:
        return True
    pattern = layer.whole_pattern()
    return not (pattern is None or isinstance(pattern, patterns.Causal))


def _refuses_positions(layer):
    """Whether a layer depends on the order of its tokens, and cannot be told another."""
    return getattr(layer, "has_weights", True) and "positions" in getattr(
        layer, "refused_arguments", ()
    )


def counts(layer: keras.Layer) -> bool:
    """Whether the positions of attention count real tokens: those of cells of a grid do not."""
    if not isinstance(layer, Attention):
        return True
    parts = layer.position, layer.preset_position, layer.whole_pattern()
    return all(getattr(part, "counts", True) for part in parts)


def ordered(x, mask, attention_mask, segment_ids, blocks):
    """The `Rows` of vectors (B, T, D) whose positions count the real tokens of a mask (B, T).

    Arrays of pairs would have to be put in order too, for each row: blocks that get them are told
    positions instead, if they take any.
    """
    given = Rows(x, mask, None, attention_mask, segment_ids)
    if len(mask.shape) != 2 or mask.shape[1] not in (1, None, x.shape[1]):
        return given  # The blocks say what is wrong.
    batch, length = ops.shape(x)[:2]
    mask = ops.broadcast_to(mask, (batch, length))
    in_order = ops.logical_or(mask[:, :-1], ops.logical_not(mask[:, 1:]))
    if backend.known_true(in_order):
        return given
    pairs = attention_mask is not None or segment_ids is not None
    if getattr(_state, "off", False):
        known = shapes.visible_values(in_order)
        if known is not None and known.all():
            return given
    if getattr(_state, "off", False) or (
        pairs and not any(_refuses_positions(block.attention) for block in blocks)
    ):
        return given._replace(positions=counted(length, mask), asked=False)
    order, places = folding.real_first(mask)
    count = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
    first = ops.arange(length, dtype="int32") < count
    return Rows(
        folding.reordered(x, order, places),
        first,
        None,
        _pairs_in(order, x, attention_mask),
        _numbers_in(order, x, segment_ids),
        (order, places),
    )


def _pairs_in(order, x, mask):
    """A mask of pairs, (T, T), (B, T, T) or (B, H, T, T), with both in an order (B, T)."""
    if mask is None:
        return None
    mask = masks.boolean("attention_mask", mask)
    inputs.check_not_padding(mask, x)
    inputs.check_fits("attention_mask", mask, x.shape[0], None, x.shape[1], x.shape[1])
    mask = inputs.four_axes("attention_mask", mask)
    if mask.shape[2] != 1:
        mask = ops.take_along_axis(mask, order[:, None, :, None], axis=2)
    if mask.shape[3] != 1:
        mask = ops.take_along_axis(mask, order[:, None, None, :], axis=3)
    return mask


def _numbers_in(order, x, segment_ids):
    """Numbers of texts of queries and of keys, in an order (B, T)."""
    found = inputs.pair("segment_ids", segment_ids, x, x)
    return found and tuple(
        ops.take_along_axis(ops.broadcast_to(numbers, ops.shape(order)), order, axis=1)
        for numbers in found
    )
