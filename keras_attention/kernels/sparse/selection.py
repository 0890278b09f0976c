"""Blocks of a sequence, and which of them are worth reading (Yuan et al. 2025)."""

from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences.sizes import known
from keras_attention.spec import cut, padded

# More than any weights sum to.
_ALWAYS = 1e9


def count(length, stride):
    """The number of blocks that begin in a sequence, of which the last may have no end."""
    return -(-length // stride)


def blocks(array, size, stride):
    """(B, N, size, …) of (B, S, …): the blocks that begin every `stride` elements.

    Those without an end are filled up with zeros.
    """
    batch, length, *rest = backend.shape(array)
    number = count(length, stride)
    # A multiple of the stride, so that blocks are views that follow one another.
    views = size // stride
    array = cut(padded(array, 1, 0, size), 1, 0, (number + views - 1) * stride)
    strides = ops.reshape(array, (batch, number + views - 1, stride, *rest))
    parts = [cut(strides, 1, view, number) for view in range(views)]
    return ops.concatenate(parts, axis=2)


def importance(weights, groups, overlap, strides):
    """What blocks of so many `strides` are worth to each group of heads, (B, G, T, N').

    A weight (B, H, T, N) of a block of `overlap` strides counts once for each that it shares with a
    block: Σ_m Σ_n p[strides · j + m − n], n < `overlap`, m < `strides` (equations 9 and 10).
    """
    batch, heads, length, number = backend.shape(weights)
    weights = ops.reshape(weights, (batch, groups, heads // groups, length, number))
    weights = padded(ops.sum(weights, axis=2), 3, overlap - 1, 0)
    weights = sum(cut(weights, 3, n, number) for n in range(overlap))
    found = count(number, strides)
    weights = cut(padded(weights, 3, 0, strides), 3, 0, found * strides)
    weights = ops.reshape(weights, (batch, groups, length, found, strides))
    return ops.sum(weights, axis=-1)


def chosen(importance, own, number, first, near):
    """The `number` blocks worth most, as booleans (B, G, T, N); None if these are all blocks.

    The `first` ones are among them, and the `near` ones up to the query's `own`, (B, 1, T, 1).
    """
    every = backend.shape(importance)[3]
    if known(every) and every <= number:
        return None
    at = ops.arange(every, dtype="int32")
    always = ops.logical_or(at < first, at > own - near)
    importance = ops.where(always, ops.cast(_ALWAYS, importance.dtype), importance)
    importance = ops.where(at > own, ops.cast(-1, importance.dtype), importance)
    if not known(every):
        importance = padded(importance, 3, 0, number, -2)
    best = ops.cast(ops.top_k(importance, number)[1], "int32")
    return ops.any(ops.expand_dims(best, -1) == at, axis=-2)
