"""Attention tile by tile, with a custom gradient: memory grows with T + S, in training too.

`tiles.passes` has the mathematics, `strategies` chooses how to compute a problem and the sizes of
tiles, and `tiling` cuts arrays into them.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import semantics
from keras_attention.kernels.semantics import HAS_KEYS
from keras_attention.kernels.tiles import passes, strategies, tiling
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known
from keras_attention.spec import AttentionResult, ElementwiseNormalization, RowNormalization

LARGEST_HALF = 65504.0  # of float16


def unsupported_reason(spec, query, key, value):
    """The reason only the definition can compute a problem, or None."""
    if isinstance(spec.normalization, ElementwiseNormalization | RowNormalization):
        spec = spec.replace(normalization=None)
    return softmax_unsupported_reason(spec, query, key, value)


def softmax_unsupported_reason(spec, query, key, value):
    """As `unsupported_reason`, for a kernel that supports softmax only."""
    for given, why in (
        (spec.return_weights, "`return_attention_scores` needs all scores"),
        (spec.score is not None, "the score is a function of pairs"),
        (spec.normalization is not None, "the normalization is not softmax"),
        (spec.multiplier is not None, "the weights are multiplied by something"),
        (0 in (*query.shape, *key.shape), "a length is 0"),
    ):
        if given:
            return why
    return None


def run(spec, query, key, value):
    """The `AttentionResult`, its output in the dtype of `value`."""
    output, lse = attend(spec, query, key, value, needs_lse(spec))
    return finish(spec, output, lse, keras.backend.standardize_dtype(value.dtype))


def in_words(spec, query, key, value):
    """How `strategies` cuts a problem into tiles, in words for `ops.explain`."""
    sizes = strategies.Sizes.of(query, key)
    chosen = strategies.choose(spec, query, key, value, sizes)
    plan = strategies.plan(chosen, spec, sizes)
    by = "by whole rows of keys" if chosen.whole_rows else "by blocks of keys"
    if plan.single:
        return f"one tile, {by}, whose weights are stored for the gradient"
    counts = plan.chunks, plan.query_blocks, plan.key_blocks
    several = f"{counts[0] * counts[1] * counts[2]} tiles" if known(*counts) else "tiles"
    sizes = plan.batch, plan.heads, plan.queries, plan.keys
    named = zip(sizes, ("sequences", "heads", "queries", "keys"), strict=True)
    each = ", ".join(f"{size if known(size) else 'some'} {what}" for size, what in named)
    return f"{several} of {each}, {by}, whose weights the gradient computes again"


def needs_lse(spec):
    """Whether `finish` reads more of lse than which queries have keys."""
    return spec.return_lse or spec.sink is not None


def finish(spec, output, lse, dtype):
    """The `AttentionResult` of an output and lse without the sink."""
    has_keys = lse > HAS_KEYS if spec.may_lack_keys else None
    if spec.sink is not None:
        # One more key, whose value is zero, takes its share of the weight.
        sink = semantics.finite(ops.cast(spec.sink, lse.dtype))[:, None]
        share = ops.sigmoid(lse - sink)
        output = output * ops.transpose(share, (0, 2, 1))[..., None]
        lse = sink + ops.softplus(lse - sink)
    lse = lse if spec.return_lse else None
    return AttentionResult(ops.cast(output, dtype), lse, has_keys=has_keys)


def finite_half(array):
    """`semantics.finite` of an array in its own dtype, whose products are summed in float32."""
    if keras.backend.standardize_dtype(array.dtype) == "float16":
        # Only infinity is too large.
        return ops.clip(array, -LARGEST_HALF, LARGEST_HALF)
    return semantics.finite(array)


def attend(spec, query, key, value, needs_lse):
    """The output (B, T, H, V) in float32 (float64 for float64 inputs), and lse, (B, H, T).

    A query without keys has an output of 0, and an lse below `HAS_KEYS`; that is all that lse says
    unless `needs_lse`.
    """
    wide = shapes.accumulation_dtype(query, key, value)
    sizes = strategies.Sizes.of(query, key)
    strategy = strategies.choose(spec, query, key, value, sizes)
    plan = strategies.plan(strategy, spec, sizes)
    tiles = tiling.Tiling(spec, strategy, plan, sizes)
    scale = spec.scale if strategy.dtype != wide else None
    query, key, value = (ops.cast(x, strategy.dtype) for x in (query, key, value))
    # Cast before they are cut into tiles: a transpose of the caller then meets that of the tiles.
    rows, columns = tiles.rows_of(query), tiles.columns_of(key)
    if scale:
        rows, columns = finite_half(rows), finite_half(columns)
    else:
        rows, columns = semantics.finite(rows * spec.scale), semantics.finite(columns)
    inputs = {
        "query": semantics.two_features(rows),
        "key": semantics.two_features(columns),
        "value": tiles.columns_of(value),
        **spec.arrays,
        # Their gradients are sums over tiles, which half precision would round, or overflow.
        **{
            name: ops.cast(array, wide)
            for name, array in spec.arrays.items()
            if name in ("relative_keys", "relative_values")
        },
        "biases": tuple(tiles.fit(bias) for bias in spec.biases),
    }

    def make(constants):
        if spec.normalization is None:
            kind = passes.WholeRows if strategy.whole_rows else passes.Blocks
        else:
            kind = passes.NormalizedRows if strategy.whole_rows else passes.Elementwise
        narrow = strategy.gradient_dtype
        both = kind(tiles.with_constants(constants), inputs, wide, narrow, needs_lse, scale)
        return both.forward, both.backward

    arrays = keras.tree.flatten(inputs)
    output, lse = backend.custom_vjp(make, arrays, tiles.constants, saves=plan.single)
    return tiles.from_rows(output), ops.transpose(tiles.from_rows(lse)[..., 0], (0, 2, 1))
