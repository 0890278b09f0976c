"""Scores of a perceptron over pairs, without materializing all its hidden units.

    scores[t, s] = Σ_u v_u tanh(query_tu + key_su)

Unchunked, this needs an array (B, H, T, S, U), 1 GB at B 4, T 512, S 512, U 256, and a
training step stores it twice. Here a loop over chunks of the units accumulates the scores, and the
gradient repeats the loop instead of storing its values.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels.tiles import strategies
from keras_attention.sequences.sizes import known

# The length assumed where it is unknown.
_UNKNOWN = 1024


def additive(query, key, v):
    """Scores (B, H, T, S) of query (B, T, H, U), key (B, S, H, U), v (H, U), of one dtype."""
    query, key = ops.transpose(query, (0, 2, 3, 1)), ops.transpose(key, (0, 2, 3, 1))
    size = chunk(query.shape[3], key.shape[3], v.shape[1])
    if size == v.shape[1]:
        return _scores(query, key, v)
    query, key, v = _split(query, 2, size), _split(key, 2, size), _split(v, 1, size)

    def forward(*arrays):
        query, key = (array[0, :, :, 0] for array in arrays[:2])
        zeros = ops.zeros_like(ops.expand_dims(query, -1) + ops.expand_dims(key, -2))

        def step(n, total):
            return total + _scores(*(array[n] for array in arrays))

        return (backend.fori_loop(0, v.shape[0], step, zeros),), ()

    def backward(arrays, outputs, saved, upstream):
        def step(n, buffers):
            found = _gradients(*(array[n] for array in arrays), upstream[0])
            return tuple(map(backend.write_buffer, buffers, (n,) * len(found), found))

        count, dtype = v.shape[0], keras.backend.standardize_dtype(v.dtype)
        sizes = [backend.shape(array)[1:] for array in arrays]
        buffers = tuple(backend.make_buffer(count, size, dtype, zeros=False) for size in sizes)
        return tuple(map(backend.stack_buffer, backend.fori_loop(0, count, step, buffers)))

    return backend.custom_vjp(lambda _: (forward, backward), [query, key, v], saves=False)[0]


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
