"""Short causal convolutions along a sequence, of layers that attend through a state.

    y_t = Σ_j w_j ⊙ x_{t − size + 1 + j}

over real tokens alone: padding is skipped, wherever it is. A cache has the inputs of the last
`size` − 1 tokens of each row.
"""

import math

import keras

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.kernels import folding

ops = keras.ops


def add_kernels(layer, size, heads):
    """The kernels (size, H, K) of a layer, by name, for `heads`: {"name": (H, K)}."""
    # The default of PyTorch's depthwise convolution, which the papers' models start from.
    limit = 1 / math.sqrt(size)
    return [
        layer.add_weight(
            name=f"{name}_conv_kernel",
            shape=(size, *shape),
            initializer=keras.initializers.RandomUniform(-limit, limit),
        )
        for name, shape in heads.items()
    ]


def convolve(arrays, kernels, mask=None, before=None):
    """Heads (B, T, H, K), each convolved with its kernel, and what follows `before`.

    Args:
        mask: (B, T) or what broadcasts to it, True = a real token; None for all.
        before: inputs of the `size` − 1 tokens before the first, (B, size − 1, features of all
            arrays), or None for zeros.
    """
    wide = shapes.accumulation_dtype(*arrays)
    batch, length = backend.shape(arrays[0])[:2]
    widths = [math.prod(kernel.shape[1:]) for kernel in kernels]
    x = ops.concatenate(
        [
            ops.reshape(ops.cast(array, wide), (batch, length, width))
            for array, width in zip(arrays, widths, strict=True)
        ],
        axis=-1,
    )
    size = kernels[0].shape[0]
    kernel = ops.concatenate([ops.reshape(ops.cast(k, wide), (size, -1)) for k in kernels], axis=-1)
    if mask is not None:
        mask = ops.broadcast_to(mask, (batch, length))
        # A product with padding that is not finite would be none either, in gradients too.
        x = ops.where(mask[..., None], x, ops.zeros_like(x))
        order, inverse = folding.real_first(mask)
        x = folding.reordered(x, order, inverse)
    first = ops.zeros((batch, size - 1, sum(widths)), wide) if before is None else before
    x = ops.concatenate([ops.cast(first, wide), x], axis=1)
    (found,) = backend.custom_vjp(_make, [x, kernel], saves=False)
    if before is not None:
        before = _last(x, mask, size - 1)
    if mask is not None:
        found = folding.reordered(found, inverse, order)
    parts = ops.split(found, [sum(widths[: i + 1]) for i in range(len(widths) - 1)], axis=-1)
    heads = [
        ops.cast(ops.reshape(part, backend.shape(array)), array.dtype)
        for part, array in zip(parts, arrays, strict=True)
    ]
    return heads, before


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
        return _weighted(padded, kernel[::-1]), of_kernel

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
