"""Attention tile by tile, with a custom gradient: memory grows with T + S, in training too.

`passes` has the mathematics, `plans` the sizes of tiles, `tiling` cuts arrays into tiles.
"""

import keras

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.kernels import passes, plans, reference, semantics, tiling
from keras_attention.kernels.semantics import HAS_KEYS
from keras_attention.sizes import known
from keras_attention.spec import AttentionResult

ops = keras.ops

# Of at most so many scores, and elements of keys, a call outside of a program has no tiles.
FEW = 2**16
# The number of scores in a tile, over all its heads. On CPUs, few enough to stay in the cache;
# an accelerator is busy only with many.
ELEMENTS = {False: 2**21, True: 2**23}
# The same with all keys in a tile: (fewest, most). Products are faster the larger they are, and the
# longer the sequence, the more memory its other arrays need.
ROW_ELEMENTS = 2**21, 2**24
LARGEST_HALF = 65504.0  # of float16
# Of a problem that is one tile.
KEPT = 2**24


def unsupported_reason(spec, query, key, value):
    """The reason only the definition can compute a problem, or None."""
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
    if is_few(spec, query, key):
        return reference.run(spec, query, key, value)
    output, lse = attend(spec, query, key, value, needs_lse(spec))
    return finish(spec, output, lse, keras.backend.standardize_dtype(value.dtype))


def is_few(spec, query, key):
    """Whether the fewest operations are the fastest: each costs more than its numbers do."""
    # Weights are dropped by numbers drawn for each tile, in programs and outside of them.
    if spec.dropout or not backend.is_eager(query):
        return False
    batch, queries, heads, _ = backend.shape(query)
    _, keys, groups, size = backend.shape(key)
    return batch * keys * max(queries * heads, groups * size) <= FEW


def needs_lse(spec):
    """Whether `finish` reads more of lse than which queries have keys."""
    return spec.return_lse or spec.sink is not None


def finish(spec, output, lse, dtype):
    """The `AttentionResult` of an output and lse without the sink."""
    has_keys = lse > HAS_KEYS if spec.restricted else None
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


def keeps_half(query, key, value):
    """Whether the three stay in half precision: tiles multiply them as they are."""
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    return dtypes in ({"bfloat16"}, {"float16"}) and backend.has_wide_products(query)


def attend(spec, query, key, value, needs_lse):
    """The output (B, T, H, V) in float32 (float64 for float64 inputs), and lse, (B, H, T).

    A query without keys has an output of 0, and an lse below `HAS_KEYS`; that is all that lse says
    unless `needs_lse`.
    """
    wide = shapes.accumulation_dtype(query, key, value)
    batch, queries, heads, _ = backend.shape(query)
    sizes = plans.Sizes(batch, heads, key.shape[2], queries, backend.shape(key)[1])
    by_rows = backend.has_fast_softmax(sizes.scores)
    # Before other terms are added, masks are terms too.
    apart = by_rows and not semantics.adjustments(spec)
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    rounds = apart and spec.relative_values is None and dtypes == {"bfloat16"}
    narrow = "bfloat16" if rounds and backend.has_fast_bfloat16() else wide
    kept, scale = wide, None
    if keeps_half(query, key, value):
        (kept,), scale = dtypes, spec.scale
        # In float16, gradients may overflow.
        narrow = kept if kept == "bfloat16" else wide
    plan = _plan(spec, sizes, by_rows, apart, backend.on_accelerator(query))
    tiles = tiling.Tiling(spec, plan, sizes, apart)
    query, key, value = (ops.cast(x, kept) for x in (query, key, value))
    # In this order, so that transposes cancel out.
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
        kind = passes.Rows if by_rows else passes.Blocks
        both = kind(tiles.with_constants(constants), inputs, wide, narrow, needs_lse, scale)
        return both.forward, both.backward

    output, lse = backend.custom_vjp(
        make, keras.tree.flatten(inputs), tiles.constants, saves=plan.single
    )
    return tiles.from_rows(output), ops.transpose(tiles.from_rows(lse)[..., 0], (0, 2, 1))


def _plan(spec, sizes, by_rows, pads, accelerated):
    """The `Plan` of a problem; `pads` allows more keys than there are."""
    all_heads = bool(spec.position_biases)
    if by_rows:
        given = {"all_heads": all_heads, "pads": pads}
        one = plans.of_rows(sizes, KEPT, **given)
        if one.single:
            return one
        (fewest, most), keys = ROW_ELEMENTS, sizes.keys
        if spec.biases:
            # All queries of few heads, so that a bias is cut into stretches of memory.
            given["many_queries"] = sizes.queries
        if spec.span is not None or spec.dropout:
            # The fewer queries, the more keys that none of them sees; dropout needs more memory.
            most, given["many_queries"] = most // 4, 512
        elements = max(fewest, min(most, 4096 * most // keys)) if known(keys) else fewest
        return plans.of_rows(sizes, elements, **given)
    elements = ELEMENTS[accelerated]
    skips = spec.span is not None
    if backend.may_share_arrays() and known(*sizes):
        return plans.of_shared(sizes, elements, skips=skips)
    return plans.of_blocks(sizes, elements, all_heads=all_heads, skips=skips)
