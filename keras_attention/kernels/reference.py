"""The definition: what attention computes, with nothing done for speed.

    scores  = cap(query · key * scale) + bias        over pairs (t, s), in float32
    weights = normalize(scores over the keys that the mask allows)
    output  = weights · value

Every other kernel must give this answer. It holds (B, H, T, S) arrays, so its memory grows with the
product of the two lengths.
"""

import typing

import keras

from keras_attention import shapes
from keras_attention.kernels import primitives, relative

ops = keras.ops

# Scores are kept within ±(_LARGEST² · K), and with their bias within ±_HIGHEST, far enough inside
# float32 that subtracting one from another stays finite. A masked one is _MASKED, so far below them
# that its weight is exp(-huge) = 0 exactly.
_LARGEST = 1e17
_HIGHEST = 1e38
_MASKED = -1.5e38


class Attended(typing.NamedTuple):
    """What a kernel returns.

    `output` is (B, T, H, V). `scores` is (B, H, T, S), the weights before dropout, or None when
    they were not asked for. `reached` is boolean and broadcasts to (B, H, T): whether a query has
    any key to attend to; None means that all have. `mask` is the whole mask, from padding, pattern
    and segments, where scores are returned. `log_probability` is that of the keys chosen by
    hard attention, (B, H, T), where a layer asked for it.
    """

    output: object
    scores: object
    reached: object
    mask: object = None
    log_probability: object = None


def attend(
    query,
    key,
    value,
    *,
    scale=1.0,
    score=None,
    relative_keys=None,
    relative_values=None,
    positions=None,
    soft_cap=None,
    bias=None,
    mask=None,
    sink=None,
    normalization=None,
    gain=None,
    dropout=0.0,
    seed=None,
    return_scores=False,
):
    """Attention of `query` (B, T, H, K) over `key` (B, S, G, K) and `value` (B, S, G, V).

    G divides H: query heads in a row share a key head.

    Args:
        scale: what the inner products are multiplied by, before they are taken.
        score: None for the inner product, or a function of query and key, both with H heads,
            giving (B, H, T, S).
        relative_keys, relative_values: None, or embeddings of distances clipped at k that join the
            keys in the scores, (H or 1, 2k + 1, K), and the values in the output,
            (H or 1, 2k + 1, V). See `kernels.relative`.
        positions: the `Positions` that `relative_keys` and `relative_values` speak of.
        soft_cap: None, or c to replace scores by c · tanh(scores / c), before the bias.
        bias: added to the scores; broadcasts to (B, H, T, S).
        mask: boolean, True = attend; broadcasts to (B, H, T, S).
        sink: None, or (H,), the score of one more key of each head, whose value is zero.
        normalization: None for softmax, or a function of scores (masked ones hugely negative) and
            mask giving weights over the last axis.
        gain: None, or what the weights are multiplied by; broadcasts to (B, H, T, S).
        dropout: the rate at which weights are dropped, 0 at inference.
        seed: the `keras.random.SeedGenerator` that dropout draws from.

    Returns:
        `Attended`; output and scores in the dtype of `value`.
    """
    dtype = keras.backend.standardize_dtype(value.dtype)
    wide = shapes.accumulation_dtype(query, key, value)
    # By the operator: on PyTorch, Keras would round a Python number to float32, also for float64.
    query = finite(ops.cast(query, wide) * scale)
    key = finite(ops.cast(key, wide))
    heads = query.shape[2]
    if score is None:
        logits = _inner(two_features(query), two_features(key))
    else:
        logits = score(query, _repeat(key, heads))
        shapes.check_scores(logits, query, key)
        logits = ops.cast(logits, wide)
    if relative_keys is not None:
        table = finite(ops.cast(relative_keys, wide))
        rows = ops.transpose(query, (0, 2, 1, 3))
        # By the operator, here and below: on TensorFlow, Keras's `add` takes an array with one axis
        # longer than 1 for a bias of the features, and fails where another has length 0.
        logits = logits + relative.scores(rows, table, ops.shape(key)[1], positions)
    if soft_cap is not None:
        logits = ops.tanh(logits / soft_cap) * soft_cap
    if bias is not None:
        logits = logits + ops.cast(bias, wide)
    if not (bias is None and score is None and relative_keys is None):
        logits = ops.clip(logits, -_HIGHEST, _HIGHEST)
    if mask is not None:
        logits = ops.where(mask, logits, ops.cast(_MASKED, wide))

    if normalization is not None:
        weights = normalization(logits, mask)
        if mask is not None:
            weights = ops.where(mask, weights, ops.zeros_like(weights))
    elif sink is not None:
        weights = _softmax_with_sink(logits, finite(ops.cast(sink, wide)))
    else:
        weights = _softmax(logits)
    if gain is not None:
        weights = ops.multiply(weights, ops.cast(gain, wide))

    reached = None if mask is None else ops.any(mask, axis=-1)
    if key.shape[1] == 0:
        reached = ops.zeros((1, 1, 1), "bool")
    dropped = weights
    if dropout:
        dropped = primitives.dropout(weights, dropout, seed)
    output = _combine(dropped, ops.cast(value, wide))
    if relative_values is not None:
        table = ops.cast(relative_values, wide)
        if reached is not None:
            # The weights of a row without keys are not zero yet, and reach the table from here.
            dropped = gate(dropped, reached, "bhts")
        rows = relative.values(dropped, table, positions)
        output = output + ops.transpose(rows, (0, 2, 1, 3))
    # A row without keys has equal weights over masked keys. Closing it here, once, leaves exact
    # zeros in the output, the scores and every gradient.
    output = ops.cast(gate(output, reached, "bthv"), dtype)
    scores = ops.cast(gate(weights, reached, "bhts"), dtype) if return_scores else None
    return Attended(output, scores, reached, mask if return_scores else None)


def two_features(array):
    """Zeros beside a single feature, which change no product."""
    # XLA takes a product of one feature for a multiplication, and does it twice, for a softmax and
    # for its largest score, with another rounding: of huge scores none may be the largest then.
    if array.shape[-1] != 1:
        return array
    return ops.pad(array, [(0, 0)] * (len(array.shape) - 1) + [(0, 1)])


def _inner(query, key):
    """Inner products (B, H, T, S) of query (B, T, H, K) and key (B, S, G, K)."""
    if 0 in (*query.shape, *key.shape):
        # TensorFlow has no grouped product of nothing.
        key = _repeat(key, query.shape[2])
    if query.shape[2] == key.shape[2]:
        return ops.einsum("bthk,bshk->bhts", query, key)
    grouped = _group(query, key.shape[2], axis=2)
    products = ops.einsum("btghk,bsgk->bghts", grouped, key)
    batch, _, _, queries, keys = ops.shape(products)
    return ops.reshape(products, (batch, query.shape[2], queries, keys))


def _combine(weights, value):
    """Sums (B, T, H, V) of value (B, S, G, V) by weights (B, H, T, S)."""
    if 0 in (*weights.shape, *value.shape):
        value = _repeat(value, weights.shape[1])
    if weights.shape[1] == value.shape[2]:
        return ops.einsum("bhts,bshv->bthv", weights, value)
    grouped = _group(weights, value.shape[2], axis=1)
    summed = ops.einsum("bghts,bsgv->btghv", grouped, value)
    batch, queries, _, _, features = ops.shape(summed)
    return ops.reshape(summed, (batch, queries, weights.shape[1], features))


def _group(array, groups, axis):
    """Splits the axis of H heads in two: (G, H / G)."""
    shape = ops.shape(array)
    return ops.reshape(array, (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]))


def _repeat(key, heads):
    """(B, S, G, K) with H heads, for scores that look at pairs of their own accord."""
    return key if key.shape[2] == heads else ops.repeat(key, heads // key.shape[2], axis=2)


def _softmax(logits):
    # Keras warns of a softmax over one element. Over one key, as at the first step of a decoder, it
    # is what it should be.
    return ops.ones_like(logits) if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def _column(logits):
    """Zeros (B, H, T, 1), also where there is no key."""
    return ops.sum(ops.zeros_like(logits), axis=-1, keepdims=True)


def _softmax_with_sink(logits, sink):
    """Softmax over keys and the sink, without the sink: it takes its share and gives nothing."""
    # By a sum: XLA cannot compile TensorFlow's gradient of a broadcast inside a loop.
    sink = _column(logits) + sink[:, None, None]
    return _softmax(ops.concatenate([logits, sink], axis=-1))[..., :-1]


def gate(array, reached, axes):
    """`array`, with zeros for queries that were not `reached`; `axes` is "bthv" or "bhts"."""
    if reached is None:
        return array
    if axes == "bthv":
        reached = ops.transpose(reached, (0, 2, 1))
    return ops.where(ops.expand_dims(reached, -1), array, ops.zeros_like(array))


def _clip(array):
    """Keeps products of two such arrays, and sums of them, inside float32."""
    return ops.clip(array, -_LARGEST, _LARGEST)


if keras.config.backend() == "tensorflow":
    # TensorFlow's gradient of a clip costs five passes over the array. No value that matters is
    # ever cut off, so it may as well pass straight through. The other backends fuse it away.
    @ops.custom_gradient
    def finite(array):
        """`array` within what products and their sums can be taken of."""
        return _clip(array), lambda upstream: upstream

else:
    finite = _clip
