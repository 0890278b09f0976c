"""Sparsemax: the nearest distribution, with weight exactly 0 for most keys.

    weights = argmin ‖p − scores‖² over p ≥ 0 with Σ p = 1                      (equation 2)
            = max(0, scores − τ),  τ = (Σ_{s in support} scores − 1) / |support|

Martins & Astudillo 2016 ("From Softmax to Sparsemax"), algorithm 1: the support is found by
sorting. Its gradient, proposition 2, follows from the second form with a constant support.
"""

import keras

from keras_attention.backend import backend
from keras_attention.kernels import semantics

ops = keras.ops


def sparsemax(scores, mask=None):
    """Weights over the last axis of `scores`, in its dtype: at least 0, with sum one.

    Args:
        scores: float32 or float64, at most 1e38 from zero.
        mask: boolean, broadcasts to `scores`, True = attend; or None. Masked keys get
            exactly 0, unless a row has no others: then all are equal.
    """
    if 0 in scores.shape:
        return ops.zeros_like(scores)
    scores = semantics.masked(scores, mask)
    # Only differences count, and no key is in the support unless it is less than 1 below the
    # largest. Raising the others to 2 below keeps the sums small for any scores.
    shifted = scores - ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    support = _support(ops.stop_gradient(ops.clip(shifted, -2.0, 0.0)))
    inside = ops.where(support, shifted, ops.zeros_like(shifted))
    size = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    threshold = (ops.sum(inside, axis=-1, keepdims=True) - 1.0) / size
    return ops.where(support, ops.relu(inside - threshold), ops.zeros_like(shifted))


def _support(scores):
    """Which of the scores, in [-2, 0], get a weight above zero."""
    descending = ops.flip(ops.sort(scores, axis=-1), axis=-1)
    # The k largest are in the support if the k-th is above the threshold that they would have,
    # (Σ of the k largest − 1) / k. The first always is.
    count = ops.cast(ops.arange(1, ops.shape(scores)[-1] + 1), scores.dtype)
    sums = backend.cumsum(descending)
    within = 1.0 + count * descending > sums
    size = ops.sum(ops.cast(within, scores.dtype), axis=-1, keepdims=True)
    total = ops.sum(ops.where(within, descending, ops.zeros_like(sums)), axis=-1, keepdims=True)
    return scores > (total - 1.0) / size
