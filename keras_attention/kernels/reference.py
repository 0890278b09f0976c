"""The definition: what attention computes, with nothing done for speed.

    scores  = query · key * scale + bias        over pairs (t, s), in float32
    weights = normalise(scores over the keys that the mask allows)
    output  = weights · value

Every other kernel must give this answer. It holds (B, H, T, S) arrays, so its memory grows with the
product of the two lengths.
"""

import typing

import keras

from keras_attention import shapes

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
    any key to attend to; None means that all have.
    """

    output: object
    scores: object
    reached: object


def attend(
    query,
    key,
    value,
    *,
    scale=1.0,
    score=None,
    bias=None,
    mask=None,
    normalization=None,
    dropout=0.0,
    seed=None,
    return_scores=False,
):
    """Attention of `query` (B, T, H, K) over `key` (B, S, H, K) and `value` (B, S, H, V).

    Args:
        scale: what the inner products are multiplied by, before they are taken.
        score: None for the inner product, or a function of query and key giving (B, H, T, S).
        bias: added to the scores; broadcasts to (B, H, T, S).
        mask: boolean, True = attend; broadcasts to (B, H, T, S).
        normalization: None for softmax, or a function of scores (masked ones hugely negative) and
            mask giving weights over the last axis.
        dropout: the rate at which weights are dropped, 0 at inference.
        seed: the `keras.random.SeedGenerator` that dropout draws from.

    Returns:
        `Attended`; output and scores in the dtype of `value`.
    """
    dtype = keras.backend.standardize_dtype(value.dtype)
    wide = shapes.accumulation_dtype(query, key, value)
    query = _finite(ops.multiply(ops.cast(query, wide), ops.cast(scale, wide)))
    key = _finite(ops.cast(key, wide))
    if score is None:
        logits = ops.einsum("bthk,bshk->bhts", query, key)
    else:
        logits = ops.cast(score(query, key), wide)
    if bias is not None:
        logits = ops.add(logits, ops.cast(bias, wide))
    if bias is not None or score is not None:
        logits = ops.clip(logits, -_HIGHEST, _HIGHEST)
    if mask is not None:
        logits = ops.where(mask, logits, ops.cast(_MASKED, wide))

    if normalization is None:
        weights = ops.softmax(logits, axis=-1)
    else:
        weights = normalization(logits, mask)
        if mask is not None:
            weights = ops.where(mask, weights, ops.zeros_like(weights))

    reached = None if mask is None else ops.any(mask, axis=-1)
    dropped = weights
    if dropout:
        dropped = keras.random.dropout(weights, dropout, seed=seed)
    output = ops.einsum("bhts,bshv->bthv", dropped, ops.cast(value, wide))
    # A row without keys has equal weights over masked keys. Closing it here, once, leaves exact
    # zeros in the output, the scores and every gradient.
    output = ops.cast(gate(output, reached, "bthv"), dtype)
    scores = ops.cast(gate(weights, reached, "bhts"), dtype) if return_scores else None
    return Attended(output, scores, reached)


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
    def _finite(array):
        return _clip(array), lambda upstream: upstream

else:
    _finite = _clip
