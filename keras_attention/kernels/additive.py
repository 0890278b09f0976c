"""Scores of a perceptron over pairs, without materializing all its hidden units.

    scores[t, s] = Σ_u v_u tanh(query_tu + key_su)

Unchunked, this needs an array (B, H, T, S, U), 1 GB at B 4, T 512, S 512, U 256, and a
training step stores it twice. Here a loop over chunks of the units accumulates the scores, and the
gradient repeats the loop instead of storing its values.
"""

import keras

from keras_attention.backend import backend
from keras_attention.kernels import strategies
from keras_attention.sizes import known

ops = keras.ops

# The length assumed where it is unknown.
_UNKNOWN = 1024


def additive(query, key, v):
    """Scores (B, H, T, S) of query (B, T, H, U) and key (B, S, H, U), with the weights v (H, U).

    The three are of one dtype.
    """
    query, key = ops.transpose(query, (0, 2, 3, 1)), ops.transpose(key, (0, 2, 3, 1))
    size = chunk(query.shape[3], key.shape[3], v.shape[1])
    if size == v.shape[1]:
        return _scores(query, key, v)
    return _chunked(_split(query, 2, size), _split(key, 2, size), _split(v, 1, size))


def chunk(queries, keys, units):
    """How many of the units are computed at once; a length may be unknown, or None."""
    queries, keys = (size if known(size) else _UNKNOWN for size in (queries, keys))
    pairs = queries * keys
    count = -(-units // max(1, strategies.requested().hidden // max(1, pairs)))
    return -(-units // count)


def _split(array, axis, size):
    """Chunks of `size` along `axis`, as a new first axis. The last is padded with zeros."""
    count = -(-array.shape[axis] // size)
    padding = [(0, 0)] * len(array.shape)
    padding[axis] = (0, count * size - array.shape[axis])
    shape = list(ops.shape(array))
    shape[axis : axis + 1] = count, size
    return ops.moveaxis(ops.reshape(ops.pad(array, padding), shape), axis, 0)


def _hidden(query, key):
    """The hidden units (B, H, U, T, S) of query (B, H, U, T) and key (B, H, U, S)."""
    return ops.tanh(ops.expand_dims(query, -1) + ops.expand_dims(key, -2))


def _scores(query, key, v):
    """Scores (B, H, T, S) by all units of the arguments."""
    return ops.sum(ops.multiply(_hidden(query, key), v[:, :, None, None]), axis=2)


def _chunked(query, key, v):
    """Scores of chunks of units: (C, B, H, U, T), (C, B, H, U, S) and (C, H, U)."""

    def forward(query, key, v):
        first = ops.expand_dims(query[0, :, :, 0], -1) + ops.expand_dims(key[0, :, :, 0], -2)
        zeros = ops.zeros_like(first)
        return (backend.sum_over(lambda units: _scores(*units), zeros, (query, key, v)),), ()

    def backward(arrays, outputs, saved, upstream):
        return backend.map_over(lambda units: _gradients(*units, upstream[0]), arrays)

    return backend.custom_vjp(lambda _: (forward, backward), [query, key, v], saves=False)[0]


def _gradients(query, key, v, upstream):
    """Gradients with respect to one chunk, from the gradient of the scores (B, H, T, S)."""
    hidden = _hidden(query, key)
    upstream = ops.expand_dims(upstream, 2)
    weighted = ops.multiply(upstream, hidden)
    slope = ops.subtract(upstream, ops.multiply(weighted, hidden))
    return (
        ops.multiply(ops.sum(slope, axis=4), v[:, :, None]),
        ops.multiply(ops.sum(slope, axis=3), v[:, :, None]),
        ops.sum(weighted, axis=(0, 3, 4)),
    )
