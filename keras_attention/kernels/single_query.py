"""Attention of a single query, as in decoding: one pass over the keys, one over the values.

Each key head multiplies the queries of its group, a matrix (S, K) by a few vectors. Keys and values
are transposed for that, heads before positions. Caches are already stored this way, and a compiled
program eliminates the two transposes: it reads them once, and copies nothing.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import blockwise, reference, semantics
from keras_attention.kernels.semantics import HAS_KEYS
from keras_attention.sequences import shapes, sizes

# Scores below this come from keys that need no clipping.
_CALM = 1e15


def unsupported_reason(spec, query, key, value):
    """The reason this kernel cannot compute a problem, or None."""
    queries = query.shape[1]
    if not sizes.known(queries):
        return "the number of queries is not known where the graph is built"
    if queries != 1:
        return "there is more than one query"
    if spec.dropout:
        return "it has no dropout"
    return blockwise.softmax_unsupported_reason(spec, query, key, value)


def run(spec, query, key, value):
    """The `AttentionResult` of query (B, 1, H, K)."""
    wide = shapes.accumulation_dtype(query, key, value)
    batch, _, heads, _ = backend.shape(query)
    groups, size = value.shape[2:]
    rows = semantics.finite(ops.cast(query, wide) * spec.scale)
    rows = ops.reshape(rows, (batch, heads, 1, query.shape[3]))
    scores = _scores(spec, rows, key)
    weights = backend.softmax(scores)
    largest = ops.stop_gradient(ops.max(scores, axis=-1))
    has_keys = largest > HAS_KEYS if spec.may_lack_keys else None

    grouped = ops.reshape(weights, (batch, groups, heads // groups, -1))
    output = backend.matmul(grouped, ops.cast(ops.transpose(value, (0, 2, 1, 3)), wide))
    output = ops.reshape(output, (batch, heads, 1, size))
    if spec.relative_values is not None:
        output = output + semantics.relative_values(spec, weights)
    # Weights of a query without keys are not zero: one pass over the output, none over the keys.
    output = semantics.where_keys(ops.transpose(output, (0, 2, 1, 3)), has_keys, "bthv")
    lse = reference.log_sum_exp(scores, None, has_keys) if blockwise.needs_lse(spec) else largest
    return blockwise.finish(spec, output, lse, keras.backend.standardize_dtype(value.dtype))


def _scores(spec, rows, key):
    """The scores (B, H, 1, S) of queries (B, H, 1, K), masked."""
    batch, heads, _, _ = backend.shape(rows)
    groups, features = key.shape[2:]
    key = ops.cast(ops.transpose(key, (0, 2, 1, 3)), rows.dtype)
    key = semantics.two_features(key)
    rows = semantics.two_features(rows)
    grouped = ops.reshape(rows, (batch, groups, heads // groups, rows.shape[3]))
    columns = ops.transpose(grouped, (0, 1, 3, 2))

    def products(key, columns):
        # Keys by queries, not queries by keys, which takes up to five times as long.
        found = ops.transpose(backend.matmul(key, columns), (0, 1, 3, 2))
        # By a size of these arrays: XLA would not know one of another branch.
        return ops.reshape(found, (backend.shape(key)[0], heads, 1, -1))

    if groups * features <= heads or backend.on_accelerator(key):
        # A GPU clips what it reads for the product; to branch, it would wait for the CPU.
        scores = products(semantics.finite(key), columns)
    else:
        # Clipping would be a longer pass than this one over the scores, needed only for huge keys.
        scores = products(key, columns)
        calm = ops.all(ops.abs(scores) < _CALM)
        # In a loop, TensorFlow's XLA compiles no gradient that keeps what one branch computes.
        scores = backend.cond_vjp(
            calm,
            lambda _, scores, key, columns: scores,
            lambda _, scores, key, columns: products(semantics.finite(key), columns),
            (scores, key, columns),
        )
    if semantics.adjustments(spec):
        scores = semantics.adjust(spec, scores, rows)
    return semantics.masked(scores, semantics.mask(spec))
