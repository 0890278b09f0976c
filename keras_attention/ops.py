"""The functional door: attention of arrays, with no weights and no layer."""

import keras

from keras_attention import kernels, masks, normalizations, patterns, scores, shapes

__all__ = ["attend", "explain"]


def attend(
    query,
    key,
    value,
    mask=None,
    bias=None,
    pattern=None,
    score="scaled_dot",
    normalization="softmax",
    offset=0,
    dropout=0.0,
    seed=None,
    return_attention_scores=False,
    kernel="auto",
):
    r"""Attention of `query` over `key` and `value`, heads already made.

    `softmax(score(query, key) + bias) · value`, over the keys that `mask` and `pattern` allow.
    Scores and softmax are computed in float32 (float64 among float64), whatever the dtype.

    Args:
        query: (B, T, H, K).
        key: (B, S, H, K).
        value: (B, S, H, V).
        mask: boolean, True = attend: (T, S), (B, T, S), or anything with four axes that broadcasts
            to (B, H, T, S).
        bias: added to the scores; broadcasts to (B, H, T, S). For ALiBi, relative positions.
        pattern: None, "causal" or a `patterns.Pattern`.
        score: "scaled_dot", "dot", "cosine", or a `scores.Score` without weights or already built.
        normalization: "softmax", "sigmoid", or a `normalizations.Normalization`.
        offset: position of the first query, a number or one for each row, (B,); keys start at 0.
            With a cache of 5 keys, `offset=4` says that a single query is the newest of them.
        dropout: rate at which weights are dropped; leave 0 at inference.
        seed: what dropout draws from: an integer, or a `keras.random.SeedGenerator`.
        return_attention_scores: whether to return `(output, scores)`, scores (B, H, T, S) being
            the weights before dropout.
        kernel: "auto", or the name of one; see `explain`.

    Returns:
        (B, T, H, V) in the dtype of `value`. A query with no key to attend to has zeros, in output,
        scores and gradients.

    Raises:
        ValueError, TypeError: shapes, mask, slots or kernel are not as described.

    Example:

    >>> import keras
    >>> from keras_attention import ops
    >>> query, key = keras.random.normal((1, 2, 4, 8)), keras.random.normal((1, 6, 4, 8))
    >>> ops.attend(query, key, key, pattern="causal", offset=4).shape
    (1, 2, 4, 8)
    """
    query, key, value = map(keras.ops.convert_to_tensor, (query, key, value))
    shapes.check_heads(query, key, value)
    shapes.check_rate("dropout", dropout)
    mask = masks.boolean("mask", mask)
    if mask is not None:
        mask = _to_four_axes("mask", mask)
    pattern, score = patterns.get(pattern), scores.get(score)
    normalization = normalizations.get(normalization)
    if not score.built:
        score.build(tuple(query.shape), tuple(key.shape))
        if score.weights:
            raise ValueError(
                "`score` has weights, which a function cannot own: use a layer, or build it first. "
                f"Received: score={score!r}"
            )
    offset = keras.ops.cast(offset, "int32")
    if len(offset.shape) == 1:
        offset = offset[:, None]
    positions = offset + keras.ops.arange(keras.ops.shape(query)[1], dtype="int32")
    attended = kernels.attend(
        **score.as_kernel_arguments(query, key),
        value=value,
        mask=mask,
        bias=bias,
        pattern=pattern,
        query_positions=positions,
        normalization=normalization.as_kernel_argument(),
        dropout=dropout,
        seed=seed,
        return_scores=return_attention_scores,
        kernel=kernel,
    )
    return (attended.output, attended.scores) if return_attention_scores else attended.output


def _to_four_axes(name, array):
    rank = len(array.shape)
    if not 2 <= rank <= 4:
        raise ValueError(
            f"`{name}` must be (T, S), (B, T, S) or (B, H, T, S). "
            f"Received: {name}.shape={tuple(array.shape)}"
        )
    if rank == 2:
        return array[None, None]
    return array[:, None] if rank == 3 else array


def explain(kernel="auto"):
    """Which kernel `attend` would run, and why: one sentence.

    >>> from keras_attention import ops
    >>> ops.explain()
    'reference: it is the only kernel there is, and gives every answer'
    """
    name, reason = kernels.choose(kernel)
    return f"{name}: {reason}"
