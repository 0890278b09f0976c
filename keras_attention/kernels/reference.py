"""The definition of attention, without optimizations.

Every other kernel must give this result. It materializes (B, H, T, S) arrays, so its memory grows
with the product of the two lengths.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import semantics
from keras_attention.sequences import shapes
from keras_attention.spec import AttentionResult


def unsupported_reason(spec, query, key, value):
    """The reason this kernel cannot compute a problem: None, it can compute all."""
    return None


def run(spec, query, key, value):
    """The `AttentionResult` of query (B, T, H, K), key (B, S, G, K) and value (B, S, G, V)."""
    dtype = keras.backend.standardize_dtype(value.dtype)
    wide = shapes.accumulation_dtype(query, key, value)
    logits = _scores(spec, ops.cast(query, wide), ops.cast(key, wide))
    mask = semantics.mask(spec)
    logits = semantics.masked(logits, mask)

    sink = None if spec.sink is None else semantics.finite(ops.cast(spec.sink, wide))
    log_probability = None
    if spec.normalization is not None:
        weights = spec.normalization(logits, mask)
        if isinstance(weights, tuple):
            weights, log_probability = weights
        if not ops.is_tensor(weights):
            raise TypeError(
                "`normalize(self, scores, mask)` of a normalization must return weights of the "
                f"shape of the scores. Received: {weights!r}"
            )
        if mask is not None:
            weights = ops.where(mask, weights, ops.zeros_like(weights))
    elif sink is not None:
        weights = _softmax(_beside_sink(logits, sink))[..., :-1]
    else:
        weights = _softmax(logits)
    if spec.multiplier is not None:
        weights = ops.multiply(weights, ops.cast(spec.multiplier, wide))

    has_keys = ops.any(mask, axis=-1) if mask is not None and spec.may_lack_keys else None
    if key.shape[1] == 0:
        has_keys = ops.zeros((1, 1, 1), "bool")
    dropped = weights
    if spec.dropout:
        dropped = backend.dropout(weights, spec.dropout, spec.seed)
    value = ops.cast(value, wide)
    output = _product(dropped, value, 1, "bhts,bshv->bthv", "bghts,bsgv->btghv")
    if spec.relative_values is not None:
        # The weights of a query without keys are not zero yet, and reach the table from here.
        dropped = semantics.where_keys(dropped, has_keys, "bhts")
        rows = semantics.relative_values(spec, dropped)
        output = output + ops.transpose(rows, (0, 2, 1, 3))
    # A query without keys has equal weights over masked keys. Zeroing them here, once, gives exact
    # zeros in the output, the weights and every gradient.
    output = ops.cast(semantics.where_keys(output, has_keys, "bthv"), dtype)
    lse = log_sum_exp(logits, sink, has_keys) if spec.return_lse else None
    result = AttentionResult(output, lse, has_keys=has_keys, log_probability=log_probability)
    if not spec.return_weights:
        return result
    weights = ops.cast(semantics.where_keys(weights, has_keys, "bhts"), dtype)
    return result.replace(weights=weights, mask=mask)


def _scores(spec, query, key):
    """Scores (B, H, T, S) before the mask."""
    # By the operator: on PyTorch, Keras would round a Python number to float32, even for float64.
    query = semantics.finite(query * spec.scale)
    key = semantics.finite(key)
    if spec.score is None:
        query, key = semantics.two_features(query), semantics.two_features(key)
        logits = _product(query, key, 2, "bthk,bshk->bhts", "btghk,bsgk->bghts")
    else:
        logits = spec.score(query, _repeat(key, query.shape[2]))
        shapes.check_scores(logits, query, key)
        logits, query = ops.cast(logits, query.dtype), semantics.two_features(query)
    if spec.score is None and not semantics.adjustments(spec):
        return logits
    return semantics.adjust(spec, logits, ops.transpose(query, (0, 2, 1, 3)))


def _product(array, key, axis, plain, grouped):
    """A product by `plain` of an array whose `axis` has H heads with a key or value of G heads.

    By `grouped` where they differ: the heads are then two axes, of the G groups and of each.
    """
    heads = array.shape[axis]
    if 0 in (*array.shape, *key.shape):
        # TensorFlow has no grouped product of empty arrays.
        key = _repeat(key, heads)
    groups = key.shape[2]
    if heads == groups:
        return ops.einsum(plain, array, key)
    shape = ops.shape(array)
    apart = ops.reshape(array, (*shape[:axis], groups, heads // groups, *shape[axis + 1 :]))
    found = ops.einsum(grouped, apart, key)
    shape, axis = ops.shape(found), 3 - axis
    return ops.reshape(found, (*shape[:axis], heads, *shape[axis + 2 :]))


def _repeat(key, heads):
    """(B, S, G, K) with each key head repeated, to H heads, for scores that compare pairs."""
    return key if key.shape[2] == heads else ops.repeat(key, heads // key.shape[2], axis=2)


def _softmax(logits):
    # Keras warns of a softmax over one element, as at the first step of a decoder: it is correct.
    return ops.ones_like(logits) if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def _beside_sink(logits, sink):
    """Scores (B, H, T, S + 1), the sink's last."""
    # A sum of zeros, which may have no keys: XLA cannot compile the gradient of TensorFlow's
    # broadcast in a loop.
    column = ops.sum(ops.zeros_like(logits), axis=-1, keepdims=True)
    return ops.concatenate([logits, column + sink[:, None, None]], axis=-1)


def log_sum_exp(logits, sink, has_keys):
    """The log-sum-exp (B, H, T) of scores; of the sink alone if there is no key."""
    if logits.shape[-1] == 0 and sink is None:
        return ops.sum(logits, axis=-1) + semantics.MASKED
    lse = ops.logsumexp(logits if sink is None else _beside_sink(logits, sink), axis=-1)
    if has_keys is None or sink is not None:
        return lse
    return ops.where(has_keys, lse, ops.cast(semantics.MASKED, lse.dtype))
