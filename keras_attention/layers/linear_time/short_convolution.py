"""Short causal convolutions along a sequence, of layers that attend through a state.

    y_t = Σ_j w_j ⊙ x_{t − size + 1 + j}

over rows whose real tokens come first. A cache has the inputs of the last `size` − 1 tokens of each
row.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences import masks, shapes


def near_identity(shape, dtype=None):
    """Kernels (size, H, K): 1 for the token itself, and small numbers for those before it.

    Models that start from mixtures of tokens, as the papers' do, learn later: docs/choosing.md.
    """
    noise = keras.initializers.RandomUniform(-0.05, 0.05)(shape, dtype)
    itself = np.zeros(shape)
    itself[-1] = 1
    return noise + ops.convert_to_tensor(itself, dtype)


def convolve(arrays, kernels, mask=None, before=None):
    """Heads (B, T, H, K), each convolved with its kernel, and what follows `before`.

    Args:
        mask: (B, T) or what broadcasts to it, True = a real token, which come first; None for all.
            What comes out at others is 0.
        before: inputs of the `size` − 1 tokens before the first, (B, size − 1, features of all
            arrays), or None for zeros.
    """
    wide = shapes.accumulation_dtype(*arrays)
    batch, length = backend.shape(arrays[0])[:2]
    if mask is not None:
        mask = ops.broadcast_to(mask, (batch, length))
    size, start = kernels[0].shape[0], 0
    found, last = [], []
    # One after another, so that devices which have some heads of each exchange nothing.
    for array, kernel in zip(arrays, kernels, strict=True):
        width = math.prod(kernel.shape[1:])
        x = ops.reshape(ops.cast(array, wide), (batch, length, width))
        if mask is not None:
            x = masks.clear(x, mask)
        if before is None:
            first = ops.zeros((batch, size - 1, width), wide)
        else:
            first = ops.cast(before[:, :, start : start + width], wide)
        start += width
        x = ops.concatenate([first, x], axis=1)
        kernel = ops.reshape(ops.cast(kernel, wide), (size, width))
        (y,) = backend.custom_vjp(_make, [x, kernel], saves=False)
        if mask is not None:
            # Others come last, and would see all real tokens.
            y = masks.clear(y, mask)
        found.append(ops.cast(ops.reshape(y, backend.shape(array)), array.dtype))
        if before is not None:
            last.append(_last(x, mask, size - 1))
    return found, ops.concatenate(last, axis=-1) if last else None


def _make(constants):
    def forward(x, kernel):
        return (_weighted(x, kernel),), ()

    def backward(arrays, outputs, saved, upstream):
        x, kernel = arrays
        (upstream,), size = upstream, kernel.shape[0]
        padded = ops.pad(upstream, [(0, 0), (size - 1, size - 1), (0, 0)])
        # As a matrix product: XLA sums columns in fifty times the time.
        products = [x[:, j : j - size + 1 or None] * upstream for j in range(size)]
        rows = [ops.reshape(product, (-1, product.shape[-1])) for product in products]
        ones = ops.ones((1, backend.shape(rows[0])[0]), x.dtype)
        of_kernel = ops.concatenate([backend.matmul(ones, row) for row in rows])
        return _weighted(padded, ops.flip(kernel, axis=0)), of_kernel

    return forward, backward


def _weighted(x, kernel):
    """Sums (B, T, F) of x (B, T + size − 1, F) times a kernel (size, F)."""
    size = kernel.shape[0]
    return sum(x[:, j : j - size + 1 or None] * kernel[j] for j in range(size))


def _last(x, mask, count):
    """The last tokens of rows that start with `count` earlier ones, and have real ones first."""
    if mask is None:
        return x[:, -count:]
    start = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)
    at = ops.cast(start, "int32") + ops.arange(count, dtype="int32")
    return backend.take_rows(x, at)
