"""The backend's own fused attention, where it gives the same result.

On PyTorch that is `scaled_dot_product_attention`, whose flash kernels materialize no scores, on
CPUs too. It supports masks, a causal pattern and a scale. A mask of keys is passed on directly; a
mask of all pairs is allowed if it is small. So are biases, unless a gradient of theirs is needed,
for which the kernel would store all scores, or half precision would round them. On CPUs the kernel
also returns the log-sum-exp of the keys, from which the weight of a sink follows.

On JAX it is cuDNN's kernel, for float16 and bfloat16 on NVIDIA's GPUs. It supports the causal
pattern, with a window or without, and takes the number of keys per row, so padding must come last.
Without a pattern the order of keys does not matter, and the real keys are moved to the front. With
one, rows are shifted, queries too, which is right only if the real keys of each row are adjacent.
That is known when the program runs: both kernels are compiled, and `blockwise` computes batches
with gaps. Other masks are passed as a mask of all pairs.

Neither kernel defines the output of queries without keys. These attend to some keys instead, and
their output is set to zero.
"""

import functools
import math

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import blockwise, reference, semantics
from keras_attention.kernels.semantics import MASKED
from keras_attention.kernels.sparse import folding
from keras_attention.sequences import masks, shapes, sizes
from keras_attention.spec import AttentionResult, Positions

# The maximum number of elements of a mask that is computed, of up to 5 bytes each, on CPUs and
# on accelerators, where tiles take ten times as long.
ELEMENTS = {False: 2**24, True: 2**28}


def unsupported_reason(spec, query, key, value):
    """The reason the backend cannot compute a problem, or None."""
    if not backend.FUSED_READS:
        return "no fused kernel of this backend is used"
    dtypes = {keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)}
    plain = spec.replace(biases=(), position_biases=()) if _has_biases(spec) else spec
    adjustments = semantics.adjustments(plain)
    for given, why in (
        (keras.config.is_flash_attention_enabled() is False, "flash attention is disabled"),
        (
            spec.return_lse and any(map(backend.needs_gradient, (query, key, value, spec.sink))),
            "it has no gradient of the log-sum-exp",
        ),
        (spec.dropout, "it drops weights by numbers of its own"),
        (adjustments, f"it has no {' and no '.join(adjustments)}"),
        (spec.relative_values is not None, "it has no embeddings of distances"),
        (key.shape[3] != value.shape[3], "keys and values have unequal sizes"),
        (len(dtypes) > 1, "the dtypes differ"),
    ):
        if given:
            return why
    arrays = query, key, value
    return blockwise.softmax_unsupported_reason(spec, *arrays) or _form(spec, *arrays)[1]


def _form(spec, query, key, value):
    """The cheapest form in which the kernel reads the masks, and the reason it cannot, or None."""
    arrays = query, key, value
    _, rest = _by_query(spec, key)
    refuses = {"lengths": _reason_by_lengths, "masks": _reason_by_mask}
    for form in backend.FUSED_READS:
        reason = refuses[form](rest, *arrays)
        if reason is None:
            causal, needs_lse = spec.pattern is not None, blockwise.needs_lse(spec)
            given = form, causal, _left(spec), needs_lse
            return form, backend.fused_unsupported_reason(*arrays, *given)
    return form, reason


def replaces(spec, query, key, value, share):
    """Whether this kernel is faster than `banded`, which computes a `share` of the pairs."""
    if unsupported_reason(spec, query, key, value):
        return False
    form, _ = _form(spec, query, key, value)
    skips = form == "lengths" and _left(spec) is not None
    return skips or (backend.on_accelerator(query) and backend.FUSED_GAIN * share > 1)


def run(spec, query, key, value):
    """The `AttentionResult`, by the backend."""
    of_queries, rest = _by_query(spec, key)
    form, _ = _form(spec, query, key, value)
    by = {"lengths": _by_lengths, "masks": _by_mask}[form]
    query, key, value = map(ops.convert_to_tensor, (query, key, value))
    # Clipped so that scores are finite.
    query, key = blockwise.finite_half(query), blockwise.finite_half(key)
    output, lse, has_keys = by(rest, query, key, value)
    has_keys = masks.every([has_keys, *(mask[..., 0] for mask in of_queries)])
    output = semantics.where_keys(output, has_keys, "bthv")
    if spec.return_lse and has_keys is not None:
        # Without keys that of the sink alone.
        without = MASKED if spec.sink is None else _sink(spec, lse.dtype)[:, None]
        lse = ops.where(has_keys, lse, ops.cast(without, lse.dtype))
    return AttentionResult(output, lse if spec.return_lse else None, has_keys=has_keys)


def _sink(spec, dtype):
    return None if spec.sink is None else semantics.finite(ops.cast(spec.sink, dtype))


def _by_query(spec, key):
    """Masks of whole queries, which apply afterwards, and the spec without them."""
    own = [mask for mask in spec.masks if mask.shape[3] == 1 and key.shape[1] != 1]
    if not own:
        return own, spec
    rest = [mask for mask in spec.masks if not any(mask is other for other in own)]
    return own, spec.replace(masks=tuple(rest))


def _causal(spec, window=False):
    """Whether the pattern is j ≤ i, counted from 0; with `window`, or that and i − left ≤ j."""
    if spec.pattern is None:
        return False
    span = spec.pattern.span()
    if (span.right, span.rate, span.exact) != (0, 1, True) or not (window or span.left is None):
        return False
    return spec.positions.counted and spec.positions.offset == 0


def _left(spec):
    """The number of keys before a query that the pattern lets it see, or None for all."""
    return None if spec.pattern is None else spec.pattern.span().left


# By a mask, if it is not causal alone.


def _reason_by_mask(spec, query, key, value):
    if _causal_alone(spec):
        return None
    half = keras.backend.standardize_dtype(query.dtype) not in ("float32", "float64")
    biases = [*spec.biases, *(x for bias in spec.position_biases for x in bias.arrays)]
    if _has_biases(spec) and half and backend.on_accelerator(query):
        return "it would round a bias"
    if any(map(backend.needs_gradient, biases)):
        return "it would store all scores for the gradient of a bias"
    pairs = [array.shape for array in (*spec.masks, *spec.biases)]
    if len(spec.biases) == len(pairs) == 1:
        pairs = []  # It exists, and is passed as it is.
    batch, queries, heads, _ = query.shape
    # All rows may have the same positions.
    rows = 1 if len(spec.positions.query.shape) == len(spec.positions.key.shape) == 1 else batch
    if spec.pattern is not None:
        pairs.append((rows, 1, queries, key.shape[1]))
    if spec.position_biases:
        pairs.append((rows, heads, queries, key.shape[1]))
    if spec.segment_ids is not None:
        pairs.append((batch, 1, queries, key.shape[1]))
    if not pairs:
        return None
    if "lengths" in backend.FUSED_READS:
        if not sizes.known(batch, queries, key.shape[1]):
            return "a size is not known"
        pairs.append((1, 1, queries, key.shape[1]))
    elements = math.prod(map(max, zip(*pairs, strict=True)))
    most = ELEMENTS[backend.on_accelerator(query)]
    return "its mask of all pairs would be large" if elements > most else None


def _causal_alone(spec):
    alone = not (spec.masks or _has_biases(spec)) and spec.segment_ids is None
    return alone and _causal(spec)


def _has_biases(spec):
    return bool(spec.biases or spec.position_biases)


def _by_mask(spec, query, key, value):
    """The output; the log-sum-exp or None; which queries have keys, or None: both (B, H, T)."""
    causal = _causal_alone(spec)
    mask = None if causal else semantics.mask(spec)
    has_keys = None
    if mask is not None and spec.may_lack_keys:
        has_keys = _has_keys(spec, mask)
        if backend.known_true(has_keys):
            has_keys = None
        else:
            mask = ops.logical_or(mask, ops.logical_not(has_keys)[..., None])
    if _has_biases(spec):
        # On CPUs, PyTorch adds a bias in float32 to products of half precision.
        bias = semantics.bias(spec, shapes.accumulation_dtype(query))
        # PyTorch's fast kernels take four axes.
        bias = ops.reshape(bias, (*[1] * (4 - len(bias.shape)), *bias.shape))
        mask = bias if mask is None else ops.where(mask, bias, ops.cast(MASKED, bias.dtype))
    if not blockwise.needs_lse(spec):
        given = {"lengths": None, "causal": causal, "left": None, "scale": spec.scale}
        fused = functools.partial(backend.fused_attention, **given)
        blocks = functools.partial(_by_tiles, spec)
        output = backend.where_fused(fused, blocks, (query, key, value, mask))
        return output, None, has_keys

    def plain(query, key, value, sink=None):
        result = reference.run(spec.replace(sink=sink, return_lse=True), query, key, value)
        return result.output, result.lse

    sink = _sink(spec, shapes.accumulation_dtype(query))
    found = backend.fused_with_lse(query, key, value, mask, causal, spec.scale, sink, plain)
    return *found, has_keys


def _has_keys(spec, mask):
    """Which queries have keys, (B, 1 or H, T), by the mask of all pairs."""
    of_keys = spec.masks and all(tuple(given.shape[1:3]) == (1, 1) for given in spec.masks)
    square = mask.shape[2] == mask.shape[3]
    if of_keys and square and _causal(spec) and spec.segment_ids is None:
        return _from_first(masks.every(given[:, :, 0] for given in spec.masks))
    return ops.any(mask, axis=-1)


def _from_first(real):
    """True from the first real key on, (…, S): whether a causal query has a key."""
    return ops.cumsum(ops.cast(real, "int32"), axis=-1) > 0


def _by_tiles(spec, query, key, value, *_):
    return ops.cast(blockwise.attend(spec, query, key, value, needs_lse=False)[0], value.dtype)


# By the number of keys in each row.


def _reason_by_lengths(spec, query, key, value):
    queries, keys, causal = query.shape[1], key.shape[1], spec.pattern is not None
    reasons = (
        (_has_biases(spec), "it has no biases"),
        (spec.segment_ids is not None, "it has no segments"),
        (causal and not _causal(spec, window=True), "it has no pattern but a causal one"),
        # A masked window may leave a query without keys, for which cuDNN defines no result.
        (_left(spec) is not None and spec.masks, "it has no masks beside a window"),
        (causal and queries != keys, "it is causal among equal lengths only"),
        (any(mask.shape[1:] != (1, 1, keys) for mask in spec.masks), "it has masks of keys only"),
    )
    return next((why for given, why in reasons if given), None)


def _by_lengths(spec, query, key, value):
    """As `_by_mask`."""
    causal, keys = spec.pattern is not None, key.shape[1]

    def by_fused(lengths, query, key, value):
        left = _left(spec)
        lengths = lengths if lengths is None else ops.maximum(lengths, 1)
        return backend.fused_attention(query, key, value, None, lengths, causal, left, spec.scale)

    def on_device(function, *more):
        """`function` in programs for the kernel's device, blocks in others."""
        blocks = functools.partial(_by_tiles, spec)
        return backend.where_fused(function, blocks, (query, key, value, *more))

    if not spec.masks:
        return on_device(lambda *arrays: by_fused(None, *arrays)), None, None
    real = masks.every(mask[:, 0, 0] for mask in spec.masks)
    real = ops.cast(ops.broadcast_to(real, (key.shape[0], keys)), "int32")
    lengths = ops.sum(real, axis=-1)
    if not causal:

        def by_real_first(query, key, value, real, lengths):
            order, back = folding.real_first(real > 0)
            key, value = (folding.reordered(array, order, back) for array in (key, value))
            return by_fused(lengths, query, key, value)

        return on_device(by_real_first, real, lengths), None, (lengths > 0)[:, None, None]

    def as_given(constants, *arrays):
        return by_fused(constants["lengths"], *arrays)

    def moved(constants, *arrays):
        """Shifts each row by one number of positions, so that padding comes last."""
        at, first = ops.arange(keys, dtype="int32"), constants["first"][:, None]
        order, back = (at + first) % keys, (at - first) % keys
        arrays = (folding.reordered(array, order, back) for array in arrays)
        return folding.reordered(by_fused(constants["lengths"], *arrays), back, order)

    def not_last(constants, *arrays):
        def with_gaps(constants, *arrays):
            # Made here: `cond_vjp` traces this function twice, and a trace cannot read the arrays
            # of another.
            positions = Positions.of(arrays[0].shape[1], keys)
            return _by_tiles(spec.replace(masks=constants["masks"], positions=positions), *arrays)

        return backend.cond_vjp(constants["together"], moved, with_gaps, arrays, constants)

    def by_one(query, key, value, real, lengths, *given):
        at = ops.arange(keys, dtype="int32")
        first = ops.cast(ops.argmax(real, axis=-1), "int32")
        after = at - first[:, None]
        inside = ops.logical_and(after >= 0, after < lengths[:, None])
        last = ops.all(ops.equal(real > 0, at < lengths[:, None]))
        together = ops.all(ops.equal(real > 0, inside))
        constants = {"lengths": lengths, "first": first, "together": together, "masks": given}
        return backend.cond_vjp(last, as_given, not_last, (query, key, value), constants)

    output = on_device(by_one, real, lengths, *spec.masks)
    return output, None, _from_first(real)[:, None]
