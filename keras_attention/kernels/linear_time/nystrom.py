"""Landmarks of a sequence, and the pseudo-inverse of their attention (Xiong et al. 2021)."""

from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known


def landmarks(heads, mask, count):
    """The means (B, m, H, K) of segments of heads (B, T, H, K), and which have a token, (B, m).

    Real token t of n is in segment ⌊t m / n⌋, or in one of its own if n < m.
    """
    batch, length, *sizes = backend.shape(heads)
    if known(length):
        count = max(1, min(count, length))
    if mask is None:
        mask = ops.ones((1, length), "bool")
    real = ops.cast(mask, "int32")
    number = ops.cumsum(real, axis=1) - 1
    segment = number * count // ops.maximum(ops.sum(real, axis=1, keepdims=True), count)
    member = segment[:, None] == ops.arange(count, dtype="int32")[None, :, None]
    wide = shapes.accumulation_dtype(heads)
    member = ops.cast(ops.logical_and(member, mask[:, None]), wide)
    total = ops.sum(member, axis=2, keepdims=True)
    rows = ops.reshape(ops.cast(heads, wide), (batch, length, sizes[0] * sizes[1]))
    means = backend.matmul(member, rows) / ops.maximum(total, 1)
    means = ops.cast(ops.reshape(means, (batch, count, *sizes)), heads.dtype)
    return means, total[..., 0] > 0


def pseudo_inverse(matrix, steps, one_scale=False):
    """The Moore-Penrose inverse (…, s, t), by equation 14; rows and columns of 0 are left out.

    Of all matrices, `one_scale` divides the first step by the largest norm.
    """
    columns = ops.max(ops.sum(ops.abs(matrix), axis=-2), axis=-1, initial=0.0)
    rows = ops.max(ops.sum(ops.abs(matrix), axis=-1), axis=-1, initial=0.0)
    norms = (columns * rows)[..., None, None]
    if one_scale:
        norms = ops.max(norms, initial=0.0)
    found = ops.swapaxes(matrix, -1, -2) / ops.where(norms > 0, norms, 1)
    identity = ops.eye(matrix.shape[-2], dtype=matrix.dtype)
    for _ in range(steps):
        product = backend.matmul(matrix, found)
        inner = 15 * identity - backend.matmul(product, 7 * identity - product)
        inner = 13 * identity - backend.matmul(product, inner)
        found = backend.matmul(found, inner) / 4
    return found
