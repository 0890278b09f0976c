"""Functional API: attention of arrays, with no weights and no layer."""

import inspect

import keras

from keras_attention import inputs, kernels, masks, normalizations, patterns, scores, shapes

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
    logit_soft_cap=None,
    sink=None,
    query_positions=None,
    key_positions=None,
    segment_ids=None,
):
    r"""Attention of `query` over `key` and `value`, heads already made.

    `softmax(score(query, key) + bias) · value`, over the keys that `mask` and `pattern` allow.
    Scores and softmax are computed in float32 (float64 among float64), whatever the dtype.

    Args:
        query: (B, T, H, K).
        key: (B, S, G, K). G divides H: `H / G` query heads in a row share a key and value head.
        value: (B, S, G, V). Integers among the three are computed with as floats.
        mask: boolean, True = attend: (T, S), (B, T, S), or anything with four axes that broadcasts
            to (B, H, T, S).
        bias: numbers added to the scores: (T, S), or anything with four axes that broadcasts to
            (B, H, T, S). For ALiBi, relative positions.
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
        logit_soft_cap: None, or c to replace scores by `c · tanh(score / c)`, before the bias.
        sink: None, or (H,), the score of one more key of each head, whose value is zero.
        query_positions: integer positions, (T,) or (B, T), where they do not count from `offset`.
        key_positions: integer positions, (S,) or (B, S), where they do not count from 0.
        segment_ids: None, or a pair of integer arrays (B, T) and (B, S): a query sees only keys of
            the same number.

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
    arguments = _arguments(
        query,
        key,
        value,
        mask,
        bias,
        pattern,
        score,
        normalization,
        offset,
        dropout,
        seed,
        return_attention_scores,
        kernel,
        logit_soft_cap,
        sink,
        query_positions,
        key_positions,
        segment_ids,
    )
    attended = kernels.attend(**arguments)
    return (attended.output, attended.scores) if return_attention_scores else attended.output


def explain(query, key, value, **arguments):
    """Which kernel `attend` would run with these arguments, and why: one sentence.

    >>> import keras
    >>> from keras_attention import ops
    >>> x = keras.random.normal((1, 6, 4, 8))
    >>> ops.explain(x, x, x, return_attention_scores=True)
    'reference: `return_attention_scores` needs all scores'
    """
    given = inspect.signature(attend).bind(query, key, value, **arguments)
    given.apply_defaults()
    name, reason = kernels.explain(**_arguments(**given.arguments))
    return f"{name}: {reason}"


def _arguments(
    query,
    key,
    value,
    mask,
    bias,
    pattern,
    score,
    normalization,
    offset,
    dropout,
    seed,
    return_attention_scores,
    kernel,
    logit_soft_cap,
    sink,
    query_positions,
    key_positions,
    segment_ids,
):
    """The arguments of `kernels.attend`, checked."""
    query, key, value = map(keras.ops.convert_to_tensor, (query, key, value))
    dtype = keras.backend.result_type(*(x.dtype for x in (query, key, value)), float)
    query, key, value = inputs.floats((query, key, value), dtype)
    shapes.check_heads(query, key, value)
    shapes.check_rate("dropout", dropout)
    mask = masks.boolean("mask", mask)
    if mask is not None:
        mask = inputs.four_axes("mask", mask)
        query, key, value = _without_padding(query, key, value, mask)
    if bias is not None:
        bias = keras.ops.convert_to_tensor(bias)
        inputs.check_bias("bias", bias, "mask")
        if len(bias.shape) > 4 or (len(bias.shape) == 3 and bias.shape[0] != 1):
            raise ValueError(
                "`bias` must be (T, S), or have four axes that broadcast to (B, H, T, S): pass "
                "`bias[None]` of one for each head, and `bias[:, None]` of one for each row. "
                f"Received: bias.shape={tuple(bias.shape)}"
            )
    pattern, score = patterns.get(pattern), scores.get(score)
    normalization = normalizations.get(normalization)
    if logit_soft_cap is not None:
        shapes.check_number("logit_soft_cap", logit_soft_cap, above=0)
    if sink is not None:
        sink = keras.ops.convert_to_tensor(sink)
        if not isinstance(normalization, normalizations.Softmax):
            raise ValueError(
                "A sink takes part in a softmax: `sink` needs normalization='softmax'. "
                f"Received: normalization={normalization!r}"
            )
        if tuple(sink.shape) != (query.shape[2],):
            raise ValueError(
                "`sink` must be one number for each head of `query`, (H,). Received: "
                f"sink.shape={tuple(sink.shape)}, query.shape={tuple(query.shape)}"
            )
    if query_positions is not None and not (isinstance(offset, int) and offset == 0):
        raise ValueError(
            "`offset` and `query_positions` both say where queries stand: pass one of them. "
            f"Received: offset={offset!r} beside `query_positions`"
        )
    if not score.built:
        # A copy, so that an error leaves the caller's score as it was.
        probe = type(score).from_config(score.get_config())
        probe.build(tuple(query.shape), tuple(key.shape))
        if probe.weights:
            raise ValueError(
                "`score` has weights, which a function cannot own: use a layer, or build it first. "
                f"Received: score={score!r}"
            )
        score.build(tuple(query.shape), tuple(key.shape))
    offset = _offset(offset, query)
    query_positions = inputs.integers("query_positions", "query", query_positions, query)
    key_positions = inputs.integers("key_positions", "key", key_positions, key)
    return dict(
        **score.as_kernel_arguments(query, key),
        value=value,
        mask=mask,
        bias=bias,
        pattern=pattern,
        segments=inputs.pair("segment_ids", segment_ids, query, key),
        query_positions=query_positions,
        key_positions=key_positions,
        offset=offset,
        soft_cap=logit_soft_cap,
        sink=sink,
        normalization=normalization.as_kernel_argument(),
        dropout=dropout,
        seed=seed,
        return_scores=return_attention_scores,
        kernel=kernel,
    )


def _without_padding(query, key, value, mask):
    """The three with zeros for what a mask leaves out of all pairs, where it has one axis for it.

    To look for such rows and columns in masks of pairs would cost more than zeros do.
    """
    if mask.shape[1] == 1 and mask.shape[2] == 1:
        key, value = (masks.clear(x, mask[:, 0, 0]) for x in (key, value))
    if mask.shape[1] == 1 and mask.shape[3] == 1:
        query = masks.clear(query, mask[:, 0, :, 0])
    return query, key, value


def _offset(offset, query):
    """`offset` as an integer, or an int32 tensor without axes or (B,)."""
    if isinstance(offset, int) and not isinstance(offset, bool):
        return offset
    offset = keras.ops.convert_to_tensor(offset)
    dtype = keras.backend.standardize_dtype(offset.dtype)
    if "int" not in dtype or len(offset.shape) > 1:
        raise ValueError(
            "`offset` must be an integer, or integers (B,). "
            f"Received dtype {dtype} and shape {tuple(offset.shape)}"
        )
    if len(offset.shape) == 1 and offset.shape[0] != 1:
        shapes.check_same(
            "Batch sizes of `query` and `offset`", query=query.shape[0], offset=offset.shape[0]
        )
    return keras.ops.cast(offset, "int32")
