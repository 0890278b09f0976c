"""Patterns with few visible keys per query, in time and memory proportional to their number.

A window of left + right + 1 keys: blocks of queries become batch elements, each with the keys
that it can reach, sliced from the sequence by a few shifted views. A pattern of positions a rate
apart splits into `rate` sequences, each `rate` times shorter. The result is dense attention of a
larger batch of shorter sequences, which `blockwise` computes.
"""

import dataclasses
import typing

import keras
from keras import ops

from keras_attention.kernels import blockwise, fused
from keras_attention.kernels.sparse import folding, grouped, merge
from keras_attention.kernels.tiles import strategies
from keras_attention.patterns.built_in import Stretched
from keras_attention.sequences import shapes, sizes
from keras_attention.spec import Positions, cut, padded


class _Way(typing.NamedTuple):
    """How a part of a problem is computed: without a `reason` otherwise than by `blockwise`.

    `share` is about how many of all pairs are computed, and `words` are for `ops.explain`.
    """

    reason: str | None
    share: float = 1
    words: str | None = None
    attend: typing.Callable = blockwise.attend


def unsupported_reason(spec, query, key, value):
    """The reason this kernel cannot compute any part of a problem, or None."""
    if spec.pattern is None and not spec.has_tables:
        return "the pattern has no window and no rate"
    if query.shape[1] == 1:
        return "there is one query"
    needs_all = blockwise.unsupported_reason(spec, query, key, value)
    if needs_all:
        return needs_all
    parts = merge.split(spec, query, key, value)
    if len(parts) > 1 and spec.normalization is not None:
        return "only results of softmax are merged"
    ways = [_way(*part) for part in parts]
    if all(way.reason for way in ways):
        return ways[0].reason
    if fused.replaces(spec, query, key, value, sum(way.share for way in ways)):
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
    found = [_attend(*part, needs_lse) for part in parts]
    return blockwise.finish(spec, *merge.merge(found), dtype)


def in_words(spec, query, key, value):
    """What each part of the pattern is computed as, for `ops.explain`."""
    parts = merge.split(spec, query, key, value)
    return " and ".join(_way(*part).words or blockwise.in_words(*part) for part in parts)


def _attend(spec, query, key, value, needs_lse):
    """As `blockwise.attend`, which computes what has no other way."""
    return _way(spec, query, key, value).attend(spec, query, key, value, needs_lse)


def _way(spec, query, key, value):
    no_groups = grouped.unsupported_reason(spec, query, key, value)
    if no_groups is None:
        return _Way(None, grouped.share(spec), grouped.in_words(spec), grouped.attend)
    span = spec.pattern.span() if spec.pattern is not None else None
    if span is None or (span.rate == 1 and (span.left is None or span.right is None)):
        return _Way(no_groups)
    positions = spec.positions
    if not positions.counted:
        return _Way("positions are not consecutive from a known offset")
    queries, keys = query.shape[1], key.shape[1]
    if not sizes.known(queries, keys):
        return _Way("a length is not known")
    if spec.has_pairs:
        return _Way("a mask or bias has all pairs")
    share = 1.0
    if span.left is not None and span.right is not None:
        count, size, reach = _blocks(span, queries)
        share = min(1, reach / keys)
    if span.rate == 1:
        width = span.left + span.right + 1
        if width < 1 or 2 * (width + strategies.requested().window) > keys:
            return _Way("the window is as wide as the sequence, or nearly")
        words = f"{count} blocks of {size} queries and the {reach} keys in their reach"
        return _Way(None, share, words, _windows)
    bias_by_distance = all(bias.by_distance for bias in spec.position_biases)
    rate = "the pattern has a rate, and"
    for refused, why in (
        (queries != keys or positions.offset, f"{rate} queries and keys are not one sequence"),
        (not span.by_distance, f"{rate} depends on more than the distance"),
        (not bias_by_distance, f"{rate} a bias depends on more than the distance"),
        (spec.has_tables, f"{rate} embeddings of distances count them one by one"),
        (queries < 4 * span.rate, "the sequence is hardly longer than the rate"),
    ):
        if refused:
            return _Way(why)
    words = f"{span.rate} sequences of positions {span.rate} apart"
    return _Way(None, share / span.rate, words, _apart)


def _apart(spec, query, key, value, needs_lse):
    """Positions a rate apart as separate sequences."""
    length, rate = query.shape[1], spec.pattern.span().rate
    size = -(-length // rate)

    def whole(array, axis):
        return _fit(array, axis, 0, size * rate)

    def stretched(bias):
        return dataclasses.replace(
            bias, function=lambda i, j, *arrays: bias.function(i * rate, j * rate, *arrays)
        )

    fold = folding.Fold(ops.shape(query)[0], rate, (whole, size), (whole, size), apart=True)
    folded = spec.folded(fold, Positions.of(size, size))
    # A mask of existing keys, here and below, that is folded like the keys.
    real = (fold(ops.ones((1, 1, 1, length), "bool")),) if length % rate else ()
    folded = folded.replace(
        masks=folded.masks + real,
        position_biases=tuple(map(stretched, spec.position_biases)),
        pattern=Stretched(spec.pattern, rate),
    )
    output, lse = fold.attend(_attend, folded, query, key, value, needs_lse)
    return cut(output, 1, 0, length), cut(lse, 2, 0, length)


def _blocks(span, queries):
    """The number of blocks of queries, and how many queries and keys each has."""
    # As many queries as the window has keys: smaller blocks read keys more often, larger ones mask
    # more of them.
    size = max(strategies.requested().window, span.left + span.right)
    return -(-queries // size), size, size + span.left + span.right


def _windows(spec, query, key, value, needs_lse):
    """Blocks of queries as a batch."""
    queries, keys, span = query.shape[1], key.shape[1], spec.pattern.span()
    offset = spec.positions.offset
    count, size, reach = _blocks(span, queries)
    # The position of the first key of the first block.
    first = offset - span.left

    def of_queries(array, axis):
        return _fit(array, axis, 0, count * size)

    def of_keys(array, axis):
        """The keys that each block can reach."""
        views = -(-reach // size)
        whole = _fit(array, axis, first, (count + views - 1) * size)
        return _views(whole, axis, count, views, reach)

    batch = ops.shape(query)[0]
    fold = folding.Fold(batch, count, (of_queries, size), (of_keys, reach))
    positions = Positions.of(size, reach, offset=span.left)
    if not (span.by_distance and all(bias.by_distance for bias in spec.position_biases)):
        # Functions of positions need the true ones; the offset is still relative to the block.
        starts = ops.arange(count, dtype="int32")[:, None] * size
        of_query, of_key = (
            ops.tile(starts + (start + ops.arange(length, dtype="int32")), (batch, 1))
            for start, length in ((offset, size), (first, reach))
        )
        positions = dataclasses.replace(positions, query=of_query, key=of_key)
    folded = spec.folded(fold, positions)
    real = fold(ops.ones((1, 1, 1, keys), "bool"))
    folded = folded.replace(masks=(*folded.masks, real))
    output, lse = fold.attend(blockwise.attend, folded, query, key, value, needs_lse)
    return cut(output, 1, 0, queries), cut(lse, 2, 0, queries)


def _fit(array, axis, start, length):
    """`length` elements of an axis from `start`, maybe negative; zeros where there are none."""
    before = min(length, max(0, -start))
    array = cut(array, axis, max(0, start), array.shape[axis])
    after = length - before - array.shape[axis]
    if after < 0:
        array = cut(array, axis, 0, length - before)
    return padded(array, axis, before, max(0, after))


def _views(array, axis, count, views, reach):
    """Overlapping views along an axis: each block with those after it, cut at `reach` elements.

    (B, …, (count + views − 1) · size, …) as (B, …, count · reach, …).
    """
    shape = list(ops.shape(array))
    before, size, after = shape[:axis], shape[axis] // (count + views - 1), shape[axis + 1 :]

    def seen(array):
        array = ops.reshape(array, (*before, count + views - 1, size, *after))
        parts = [cut(array, axis, view, count) for view in range(views)]
        last = reach - (views - 1) * size
        parts[-1] = cut(parts[-1], axis + 1, 0, last)
        found = ops.concatenate(parts, axis=axis + 1)
        return ops.reshape(found, (*before, count * reach, *after))

    def summed(upstream):
        found, total = ops.reshape(upstream, (*before, count, reach, *after)), None
        for view in range(views):
            part = cut(found, axis + 1, view * size, size)
            widths = [(0, 0)] * (len(shape) + 1)
            widths[axis] = (view, views - 1 - view)
            widths[axis + 1] = (0, size - min(size, reach - view * size))
            part = ops.pad(part, widths)
            total = part if total is None else total + part
        return ops.reshape(total, shape)

    return folding.linear(seen, summed, array)
