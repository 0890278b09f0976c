"""Attention of a single query, as in decoding: one pass over the keys, one over the values.

A cache (B, S, G, K) is read as it lies, as matrices (B, S, G · K), and never transposed or copied.
For that each query head stands at the place of its group, among zeros, in a row of G · K features;
the values that come back are of all groups, of which it keeps its own. That is G times the
arithmetic, which costs less than laying out a long cache anew for a product that reads it once.
"""

import keras

from keras_attention import shapes
from keras_attention.kernels import primitives, relative
from keras_attention.kernels.blockwise import HIGHEST, MASKED, REACHED
from keras_attention.kernels.primitives import product
from keras_attention.kernels.reference import finite, two_features

ops = keras.ops

# With more, the arithmetic would cost more than laying out the cache anew.
GROUPS = 16
# Scores below this come from keys that need no clipping.
_CALM = 1e15


def why_not(task):
    """Why this is not for a task, or None."""
    if task.query.shape[1] != 1:
        return "there is more than one query"
    if task.key.shape[2] > GROUPS:
        return f"it multiplies by all key heads at once, and there are more than {GROUPS}"
    return "it has no dropout" if task.dropout else None


def attend(task):
    """The output (B, 1, H, V) in float32 (float64 among float64), and L, (B, H, 1).

    L is below `REACHED` for queries that no key was there for, whose output is zero.
    """
    wide = shapes.accumulation_dtype(task.query, task.key, task.value)
    batch, _, heads, _ = primitives.shape(task.query)
    groups, size = task.value.shape[2:]
    query = finite(ops.multiply(ops.cast(task.query, wide), task.scale))
    rows = ops.reshape(query, (batch, heads, 1, query.shape[3]))
    value = _matrices(ops.cast(task.value, wide))
    weights, normalizer = _weights(_scores(task, rows, wide), task)

    output = product(weights[:, :, 0], value)
    output = ops.reshape(output, (batch, groups, heads // groups, groups, size))
    # Not by a product: what is not kept may be infinite.
    output = ops.sum(ops.where(_own(groups)[..., None], output, 0.0), axis=3)
    output = ops.reshape(output, (batch, heads, 1, size))
    if task.relative_values is not None:
        table = ops.cast(task.relative_values, wide)
        output = output + relative.values(weights, table, task.positions)
    return ops.transpose(output, (0, 2, 1, 3)), normalizer


def _matrices(array):
    """A key or value (B, S, G, K) as (B, S, G · K)."""
    batch, length, groups, size = primitives.shape(array)
    return ops.reshape(array, (batch, length, groups * size))


def _own(groups):
    """Which of the groups each is itself, (G, 1, G)."""
    return ops.cast(ops.eye(groups, dtype="int32"), "bool")[:, None]


def _scores(task, rows, wide):
    """The scores (B, H, 1, S) of queries (B, H, 1, K), masked."""
    batch, heads, _, size = primitives.shape(rows)
    key = two_features(ops.cast(task.key, wide))
    groups = key.shape[2]
    placed = two_features(rows)
    size = placed.shape[3]
    if groups > 1:
        placed = ops.reshape(placed, (batch, groups, heads // groups, 1, size))
        placed = ops.where(_own(groups)[..., None], placed, 0.0)
    placed = ops.reshape(placed, (batch, heads, groups * size))
    # Clipping would be one more pass over all keys, for the sake of huge ones.
    scores = product(placed, _matrices(key), flip_second=True)
    calm = ops.all(ops.abs(scores) < _CALM)
    scores = primitives.cond(
        calm,
        lambda: scores,
        lambda: product(placed, _matrices(finite(key)), flip_second=True),
    )[:, :, None]

    adjusts = task.soft_cap is not None
    if task.relative_keys is not None:
        table = finite(ops.cast(task.relative_keys, wide))
        scores = scores + relative.scores(rows, table, primitives.shape(key)[1], task.positions)
        adjusts = True
    if task.soft_cap is not None:
        scores = ops.tanh(scores / task.soft_cap) * task.soft_cap
    bias = task.whole_bias()
    if bias is not None:
        scores = scores + ops.cast(bias, wide)
        adjusts = True
    if adjusts:
        scores = ops.clip(scores, -HIGHEST, HIGHEST)
    mask = task.whole_mask()
    return scores if mask is None else ops.where(mask, scores, MASKED)


def _weights(scores, task):
    """The weights (B, H, 1, S), and L, (B, H, 1)."""
    largest = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    weights = ops.exp(scores - largest)
    total = ops.sum(weights, axis=-1, keepdims=True)
    weights, normalizer = weights / total, largest + ops.log(total)
    if task.restricted:
        reached = largest > REACHED
        weights = ops.where(reached, weights, 0.0)
        normalizer = ops.where(reached, normalizer, MASKED)
    return weights, normalizer[..., 0]
