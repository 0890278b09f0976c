"""Attention of a single query, as in decoding: one pass over the keys, one over the values.

Each key head multiplies the queries of its group, a matrix (S, K) by a few vectors. Keys and values
are turned for that, heads before places. Those of a cache lie so already, and a compiled program
leaves out turning them there and back: it reads them once, and copies nothing.
"""

import keras

from keras_attention import shapes
from keras_attention.kernels import primitives, relative
from keras_attention.kernels.blockwise import HIGHEST, MASKED, REACHED
from keras_attention.kernels.primitives import product
from keras_attention.kernels.reference import finite, two_features

ops = keras.ops

# Scores below this come from keys that need no clipping.
_CALM = 1e15


def why_not(task):
    """Why this is not for a task, or None."""
    queries = task.query.shape[1]
    if queries is None:
        return "the number of queries is not known where the graph is built"
    if queries != 1:
        return "there is more than one query"
    return "it has no dropout" if task.dropout else None


def attend(task):
    """The output (B, 1, H, V) in float32 (float64 among float64), and L, (B, H, 1).

    L is below `REACHED` for queries that no key was there for, whose output is zero.
    """
    wide = shapes.accumulation_dtype(task.query, task.key, task.value)
    batch, _, heads, _ = primitives.shape(task.query)
    groups, size = task.value.shape[2:]
    query = finite(ops.cast(task.query, wide) * task.scale)
    rows = ops.reshape(query, (batch, heads, 1, query.shape[3]))
    weights, normalizer = _weights(_scores(task, rows, wide), task)

    grouped = ops.reshape(weights, (batch, groups, heads // groups, -1))
    output = product(grouped, ops.cast(_turned(task.value), wide))
    output = ops.reshape(output, (batch, heads, 1, size))
    if task.relative_values is not None:
        table = ops.cast(task.relative_values, wide)
        output = output + relative.values(weights, table, task.positions)
    return ops.transpose(output, (0, 2, 1, 3)), normalizer


def _turned(array):
    """A key or value (B, S, G, K) as (B, G, S, K)."""
    return ops.transpose(array, (0, 2, 1, 3))


def _scores(task, rows, wide):
    """The scores (B, H, 1, S) of queries (B, H, 1, K), masked."""
    batch, heads, _, size = primitives.shape(rows)
    key, groups = two_features(ops.cast(_turned(task.key), wide)), task.key.shape[2]
    grouped = two_features(ops.reshape(rows, (batch, groups, heads // groups, size)))
    columns = ops.transpose(grouped, (0, 1, 3, 2))

    def products(key):
        # Keys by queries, not queries by keys: the other way round takes up to five times as long.
        found = ops.transpose(product(key, columns), (0, 1, 3, 2))
        return ops.reshape(found, (batch, heads, 1, -1))

    scores = products(key)
    # Clipping would be one more pass over all keys, for the sake of huge ones.
    calm = ops.all(ops.abs(scores) < _CALM)
    scores = primitives.cond(calm, lambda: scores, lambda: products(finite(key)))

    adjusts = task.soft_cap is not None
    if task.relative_keys is not None:
        table = finite(ops.cast(task.relative_keys, wide))
        scores = scores + relative.scores(rows, table, primitives.shape(key)[2], task.positions)
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
