"""Patterns with few visible keys per query, in time and memory proportional to their number.

A window of left + right + 1 keys: blocks of queries become batch elements, each with the keys
that it can reach, sliced from the sequence by a few shifted views. A pattern of positions a rate
apart splits into `rate` sequences, each `rate` times shorter. The result is dense attention of a
larger batch of shorter sequences, which `blockwise` computes.
"""

import dataclasses

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels import blockwise, fused
from keras_attention.kernels.sparse import folding, grouped, merge
from keras_attention.kernels.tiles import strategies
from keras_attention.patterns.derived import Stretched
from keras_attention.sequences import shapes, sizes
from keras_attention.spec import Positions


def unsupported_reason(spec, query, key, value):
    """The reason this kernel cannot compute any part of a problem, or None."""
    if spec.pattern is None and not _has_tables(spec):
        return "the pattern has no window and no rate"
    if query.shape[1] == 1:
        return "there is one query"
    needs_all = blockwise.unsupported_reason(spec, query, key, value)
    if needs_all:
        return needs_all
    parts = merge.split(spec, query, key, value)
    if len(parts) > 1 and spec.normalization is not None:
        return "only results of softmax are merged"
    reasons = [_unsupported_reason(*part) for part in parts]
    if None not in reasons:
        return reasons[0]
    share = sum(1 if why else _share(part) for why, part in zip(reasons, parts, strict=True))
    if fused.replaces(spec, query, key, value, share):
        return "the backend's fused kernel is faster"
    return None


def run(spec, query, key, value):
    """The `AttentionResult`, merged from the parts of the pattern."""
    dtype = keras.backend.standardize_dtype(value.dtype)
    parts = merge.split(spec, query, key, value)
    if len(parts) > 1 or not strategies.keeps_half(query, key, value):
        # Cast before the split, so that the sum of the parts' gradients is rounded once.
        wide = shapes.accumulation_dtype(query, key, value)
        parts = merge.split(spec, *(ops.cast(x, wide) for x in (query, key, value)))
    needs_lse = len(parts) > 1 or blockwise.needs_lse(spec)
    found = [
        (blockwise.attend if _unsupported_reason(*part) else _attend)(*part, needs_lse)
        for part in parts
    ]
    return blockwise.finish(spec, *merge.merge(found), dtype)


def in_words(spec, query, key, value):
    """What each part of the pattern is computed as, for `ops.explain`."""
    parts = merge.split(spec, query, key, value)
    return " and ".join(_in_words(*part) for part in parts)


def _in_words(spec, query, key, value):
    if _unsupported_reason(spec, query, key, value):
        return blockwise.in_words(spec, query, key, value)
    if grouped.unsupported_reason(spec, query, key, value) is None:
        return grouped.in_words(spec)
    span = spec.pattern.span()
    if span.rate > 1:
        return f"{span.rate} sequences of positions {span.rate} apart"
    count, size, reach = _blocks(span, query.shape[1])
    return f"{count} blocks of {size} queries and the {reach} keys in their reach"


def _share(part):
    """About how many of all pairs are computed of a part."""
    spec, query, key, _ = part
    if grouped.unsupported_reason(*part) is None:
        return grouped.share(spec)
    span = spec.pattern.span()
    if span.left is None or span.right is None:
        return 1 / span.rate
    _, _, reach = _blocks(span, query.shape[1])
    return min(1, reach / key.shape[1]) / span.rate


def _has_tables(spec):
    return spec.relative_keys is not None or spec.relative_values is not None


def _unsupported_reason(spec, query, key, value):
    no_groups = grouped.unsupported_reason(spec, query, key, value)
    if no_groups is None:
        return None
    span = spec.pattern.span() if spec.pattern is not None else None
    if span is None or (span.rate == 1 and (span.left is None or span.right is None)):
        return no_groups
    positions = spec.positions
    if not positions.counted:
        return "positions are not consecutive from a known offset"
    lengths = query.shape[1], key.shape[1]
    if not sizes.known(*lengths):
        return "a length is not known"
    for array in (*spec.masks, *spec.biases):
        if array.shape[2] != 1 and array.shape[3] != 1:
            return "a mask or bias has all pairs"
    if span.rate > 1:
        if lengths[0] != lengths[1] or positions.offset:
            return "the pattern has a rate, and queries and keys are not one sequence"
        if not span.by_distance:
            return "the pattern has a rate, and depends on more than the distance"
        if not all(bias.by_distance for bias in spec.position_biases):
            return "the pattern has a rate, and a bias depends on more than the distance"
        if _has_tables(spec):
            return "the pattern has a rate, and embeddings of distances count them one by one"
        if lengths[0] < 4 * span.rate:
            return "the sequence is hardly longer than the rate"
        return None
    width = span.left + span.right + 1
    if width < 1 or 2 * (width + strategies.requested().window) > lengths[1]:
        return "the window is as wide as the sequence, or nearly"
    return None


def _attend(spec, query, key, value, needs_lse):
    """As `blockwise.attend`."""
    if grouped.unsupported_reason(spec, query, key, value) is None:
        return grouped.attend(spec, query, key, value, needs_lse)
    span = spec.pattern.span()
    if span.rate > 1:
        return _apart(spec, query, key, value, span.rate, needs_lse)
    return _windows(spec, query, key, value, span, needs_lse)


def _apart(spec, query, key, value, rate, needs_lse):
    """Positions a rate apart as separate sequences."""
    length = query.shape[1]
    size = -(-length // rate)

    def fold(array, axis=1):
        """(B, T, …) as (B · rate, T / rate, …)."""
        return folding.batched(_fit(array, axis, 0, size * rate), axis, rate, size, apart=True)

    def stretched(bias):
        return dataclasses.replace(
            bias, function=lambda i, j, *arrays: bias.function(i * rate, j * rate, *arrays)
        )

    fold_mask = folding.Fold(ops.shape(query)[0], rate, fold, fold, apart=True)
    folded = spec.folded(fold_mask, Positions.of(size, size))
    # A mask of existing keys, here and below, that is folded like the keys.
    real = (fold_mask(ops.ones((1, 1, 1, length), "bool")),) if length % rate else ()
    folded = folded.replace(
        masks=folded.masks + real,
        position_biases=tuple(map(stretched, spec.position_biases)),
        pattern=Stretched(spec.pattern, rate),
    )
    folded = folded, fold(query), fold(key), fold(value)
    attend = blockwise.attend if _unsupported_reason(*folded) else _attend
    output, lse = fold_mask.back(*attend(*folded, needs_lse), size)
    return folding.cut(output, 1, 0, length), folding.cut(lse, 2, 0, length)


def _blocks(span, queries):
    """The number of blocks of queries, and how many queries and keys each has."""
    # As many as the window has: fewer would read keys more often, more would mask more of them.
    size = max(strategies.requested().window, span.left + span.right)
    return -(-queries // size), size, size + span.left + span.right


def _windows(spec, query, key, value, span, needs_lse):
    """Blocks of queries as a batch."""
    queries, keys = query.shape[1], key.shape[1]
    offset = spec.positions.offset
    count, size, reach = _blocks(span, queries)
    # The position of the first key of the first block.
    first = offset - span.left

    def of_queries(array, axis=1):
        """(B, T, …) as (B · blocks, t, …)."""
        return folding.batched(_fit(array, axis, 0, count * size), axis, count, size)

    def of_keys(array, axis=1):
        """(B, S, …) as (B · blocks, s, …), the keys that each block can reach."""
        views = -(-reach // size)
        whole = _fit(array, axis, first, (count + views - 1) * size)
        return folding.batched(_views(whole, axis, count, views, reach), axis, count, reach)

    batch = ops.shape(query)[0]
    fold_mask = folding.Fold(batch, count, of_queries, of_keys)
    positions = Positions.of(size, reach, offset=span.left)
    if not (span.by_distance and all(bias.by_distance for bias in spec.position_biases)):
        # The same distances, at positions relative to each block.
        starts = ops.arange(count, dtype="int32")[:, None] * size
        own = (
            starts + (offset + ops.arange(size, dtype="int32")),
            starts + (first + ops.arange(reach, dtype="int32")),
        )
        of_query, of_key = (ops.tile(x, (batch, 1)) for x in own)
        positions = dataclasses.replace(positions, query=of_query, key=of_key)
    folded = spec.folded(fold_mask, positions)
    real = fold_mask(ops.ones((1, 1, 1, keys), "bool"))
    folded = folded.replace(masks=(*folded.masks, real))
    folded = folded, of_queries(query), of_keys(key), of_keys(value)
    output, lse = fold_mask.back(*blockwise.attend(*folded, needs_lse), size)
    return folding.cut(output, 1, 0, queries), folding.cut(lse, 2, 0, queries)


def _fit(array, axis, start, length):
    """`length` elements of an axis from `start`, maybe negative; zeros where there are none."""
    before = min(length, max(0, -start))
    array = folding.cut(array, axis, max(0, start), array.shape[axis])
    after = length - before - array.shape[axis]
    if after < 0:
        array = folding.cut(array, axis, 0, length - before)
    if before or after > 0:
        widths = [(0, 0)] * len(array.shape)
        widths[axis] = (before, max(0, after))
        array = ops.pad(array, widths)
    return array


def _views(array, axis, count, views, reach):
    """Overlapping views along an axis: each block with those after it, cut at `reach` elements.

    (B, …, (count + views − 1) · size, …) as (B, …, count · reach, …).
    """
    shape = list(ops.shape(array))
    before, size, after = shape[:axis], shape[axis] // (count + views - 1), shape[axis + 1 :]

    def forward(array):
        array = ops.reshape(array, (*before, count + views - 1, size, *after))
        parts = [folding.cut(array, axis, view, count) for view in range(views)]
        last = reach - (views - 1) * size
        parts[-1] = folding.cut(parts[-1], axis + 1, 0, last)
        found = ops.concatenate(parts, axis=axis + 1)
        return (ops.reshape(found, (*before, count * reach, *after)),), ()

    def backward(arrays, outputs, saved, upstream):
        found = ops.reshape(upstream[0], (*before, count, reach, *after))
        # A sum, rounded once.
        found, total = ops.cast(found, shapes.accumulation_dtype(found)), None
        for view in range(views):
            part = found[(slice(None),) * (axis + 1) + (slice(view * size, (view + 1) * size),)]
            widths = [(0, 0)] * (len(shape) + 1)
            widths[axis] = (view, views - 1 - view)
            widths[axis + 1] = (0, size - min(size, reach - view * size))
            part = ops.pad(part, widths)
            total = part if total is None else total + part
        return (ops.cast(ops.reshape(total, shape), array.dtype),)

    if "float" not in keras.backend.standardize_dtype(array.dtype):
        return forward(array)[0][0]
    # TensorFlow's own gradient of a slice is slow.
    return backend.custom_vjp(lambda _: (forward, backward), [array], saves=False)[0]
