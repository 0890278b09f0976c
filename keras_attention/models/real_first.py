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

from keras_attention import patterns
from keras_attention.backend import backend
from keras_attention.hints import Tensor
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
        order: None, or (B, T) and (B, T): of each row of `x` its index in the batch, and back.
        asked: whether the positions were asked for by the caller.
    """

    x: Tensor
    mask: Tensor | None
    positions: Tensor | None
    order: tuple[Tensor, Tensor] | None = None
    asked: bool = True

    def positions_of(self, block: keras.Layer) -> Tensor | None:
        """The positions for a block. One without weights of pairs takes none, and needs none."""
        attention = getattr(block, "attention", None)
        return self.positions if self.asked or getattr(attention, "has_weights", True) else None

    def restored(self, x: Tensor) -> Tensor:
        """`x` (B, T, D) in the order of the batch."""
        return x if self.order is None else folding.reordered(x, *self.order[::-1])


def counted(length, mask=None, offset=None):
    """Positions that count real tokens alone, (1, T) or (B, T)."""
    if mask is None:
        positions = ops.arange(length, dtype="int32")[None]
    else:
        positions = ops.maximum(ops.cumsum(ops.cast(mask, "int32"), axis=1) - 1, 0)
    return positions if offset is None else positions + ops.expand_dims(offset, -1)


def depends_on_positions(layer: keras.Layer) -> bool:
    """Whether attention depends on more of its positions than on their order."""
    if not isinstance(layer, Attention):
        return True
    if layer.position is not None or layer.preset_position is not None:
        return True
    pattern = layer.whole_pattern()
    return not (pattern is None or isinstance(pattern, patterns.Causal))


def counts(layer: keras.Layer) -> bool:
    """Whether the positions of attention count real tokens: those of cells of a grid do not."""
    if not isinstance(layer, Attention):
        return True
    parts = layer.position, layer.preset_position, layer.whole_pattern()
    return all(getattr(part, "counts", True) for part in parts)


def ordered(x, mask, others):
    """The `Rows` of vectors (B, T, D) whose positions count the real tokens of a mask (B, T).

    `others` says whether blocks get other arrays too, in the order of the batch.
    """
    if len(mask.shape) != 2 or mask.shape[1] not in (1, None, x.shape[1]):
        return Rows(x, mask, None)  # The blocks say what is wrong.
    batch, length = ops.shape(x)[:2]
    mask = ops.broadcast_to(mask, (batch, length))
    if backend.known_true(ops.logical_or(mask[:, :-1], ops.logical_not(mask[:, 1:]))):
        return Rows(x, mask, None)
    if others or getattr(_state, "off", False):
        return Rows(x, mask, counted(length, mask), asked=False)
    order, places = folding.real_first(mask)
    count = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
    first = ops.arange(length, dtype="int32") < count
    return Rows(folding.reordered(x, order, places), first, None, (order, places))
