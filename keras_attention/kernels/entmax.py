"""α-entmax: sparse weights, from near softmax (α = 1) to sparsemax (α = 2).

    weights = argmax pᵀ scores + (Σ p − Σ p^α) / (α (α − 1)) over p ≥ 0 with Σ p = 1
            = max(0, 1 + u (scores − t))^(1 / u),  u = α − 1, with t such that they sum to one

Peters et al. 2019 ("Sparse Sequence-to-Sequence Models"), equations 8 and 10, with their τ as
u t − 1, so that the limit for α → 1 is exp(scores − t). Both gradients, of scores and of α
(Correia et al. 2019, proposition 1), are those of this form, with that of t by its definition.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import semantics

# Newton's method for t has an error below the rounding of float32 after ten steps, of any scores of
# 8192 keys that were tried and any α; more keys need few more.
_STEPS = 14


def sparsemax(scores, mask=None):
    """The weights with α = 2 over the last axis of `scores`, `max(0, scores − τ)`, by sorting.

    Martins & Astudillo 2016 ("From Softmax to Sparsemax"), algorithm 1, with
    `τ = (Σ_{s in support} scores − 1) / |support|`. Its gradient, proposition 2, is that of this
    form with a constant support. `scores` and `mask` are as of `entmax15`.
    """
    if 0 in scores.shape:
        return ops.zeros_like(scores)
    # Only differences count, and no key is in the support unless it is less than 1 below the
    # largest. Raising the others to 2 below keeps the sums small for any scores.
    shifted = _below_largest(scores, mask)
    fixed = ops.stop_gradient(ops.clip(shifted, -2.0, 0.0))
    descending = ops.flip(ops.sort(fixed, axis=-1), axis=-1)
    # The k largest are in the support if the k-th is above the threshold that they would have,
    # (Σ of the k largest − 1) / k. The first always is.
    count = ops.cast(ops.arange(1, ops.shape(scores)[-1] + 1), scores.dtype)
    sums = backend.cumsum(descending)
    within = 1.0 + count * descending > sums
    size = ops.sum(ops.cast(within, scores.dtype), axis=-1, keepdims=True)
    total = ops.sum(ops.where(within, descending, ops.zeros_like(sums)), axis=-1, keepdims=True)
    support = fixed > (total - 1.0) / size
    inside = ops.where(support, shifted, ops.zeros_like(shifted))
    size = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    threshold = (ops.sum(inside, axis=-1, keepdims=True) - 1.0) / size
    return ops.where(support, ops.relu(inside - threshold), ops.zeros_like(shifted))


def entmax15(scores, mask=None):
    """The weights with α = 1.5 over the last axis of `scores`, exactly, by sorting.

    Args:
        scores: float32 or float64, at most 1e38 from zero.
        mask: boolean, broadcasts to `scores`, True = attend; or None. Masked keys get
            exactly 0, unless a row has no others: then all are equal.
    """
    if 0 in scores.shape:
        return ops.zeros_like(scores)
    # Weights are max(0, half − τ)², where the largest half is 0 and τ is at least −1.
    half = _below_largest(scores, mask) / 2
    support = half > _threshold(ops.stop_gradient(ops.clip(half, -1.0, 0.0)))
    inside = ops.where(support, half, ops.zeros_like(half))
    size = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    mean = ops.sum(inside, axis=-1, keepdims=True) / size
    spread = ops.where(support, ops.square(inside - mean), ops.zeros_like(half))
    spread = ops.sum(spread, axis=-1, keepdims=True)
    # 1 at most, and less unless one of them is at the threshold.
    least = 1e-14 if keras.backend.standardize_dtype(scores.dtype) == "float64" else 1e-6
    rest = 1.0 - spread
    rest = ops.where(rest > least, rest, ops.cast(least, scores.dtype))
    threshold = mean - ops.sqrt(rest / size)
    weights = ops.square(ops.relu(inside - threshold))
    return ops.where(support, weights, ops.zeros_like(half))


def _threshold(half):
    """τ for half scores in [−1, 0], by algorithm 2 of Peters et al. 2019."""
    descending = ops.flip(ops.sort(half, axis=-1), axis=-1)
    # The k largest are in the support if the k-th is above the threshold that they would have.
    count = ops.cast(ops.arange(1, ops.shape(half)[-1] + 1), half.dtype)
    mean = backend.cumsum(descending) / count
    spread = backend.cumsum(ops.square(descending)) - count * ops.square(mean)
    threshold = mean - ops.sqrt(ops.relu(1.0 - spread) / count)
    within = descending > threshold
    # The first always is. The threshold wanted is that of the last which is.
    size = ops.sum(ops.cast(within, half.dtype), axis=-1, keepdims=True)
    last = ops.where(ops.equal(count, size), threshold, ops.zeros_like(threshold))
    return ops.sum(last, axis=-1, keepdims=True)


def entmax(scores, alpha, mask=None):
    """The weights over the last axis of `scores`, by Newton's method.

    Args:
        scores, mask: as of `entmax15`.
        alpha: α, from 1.01 to 2, an array that broadcasts to `scores`, with a gradient.
    """
    if 0 in scores.shape:
        return ops.zeros_like(scores)
    u = ops.cast(alpha, scores.dtype) - 1.0
    below = _below_largest(scores, mask)
    fixed, fixed_u = ops.stop_gradient(below), ops.stop_gradient(u)
    t = ops.zeros_like(fixed[..., :1])
    for _ in range(_STEPS):
        total, slope = _sums(fixed, t, fixed_u)
        # (Σ p)^u is convex and falls with t, so that t rises to the root and never passes it. For
        # α → 1 it is a line.
        rest = (ops.power(total, fixed_u) - 1.0) / fixed_u
        t = t + rest * ops.power(total, 1.0 - fixed_u) / slope
    # One more step, with gradients, gives that of t: Σ p stays one.
    _, slope = _sums(fixed, t, fixed_u)
    t = t + (ops.sum(_weights(below - t, u), axis=-1, keepdims=True) - 1.0) / slope
    return _weights(below - t, u)


def _sums(below, t, u):
    """Σ p, and −dΣ p / dt = Σ p^(1 − u)."""
    weights = _weights(below - t, u)
    # p^−u is 1 + u (score − t).
    base = ops.where(weights > 0, 1.0 + u * (below - t), ops.ones_like(weights))
    slope = ops.sum(weights / base, axis=-1, keepdims=True)
    return ops.sum(weights, axis=-1, keepdims=True), slope


def _weights(distance, u):
    """max(0, 1 + u distance)^(1 / u), without a gradient where it is 0."""
    scaled = u * distance
    inside = scaled > -1.0
    scaled = ops.where(inside, scaled, ops.zeros_like(scaled))
    return ops.where(inside, ops.exp(ops.log1p(scaled) / u), ops.zeros_like(scaled))


def _below_largest(scores, mask):
    """Scores less the largest of a row, which changes no weight."""
    scores = semantics.masked(scores, mask)
    return scores - ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
