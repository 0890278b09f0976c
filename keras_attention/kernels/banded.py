"""Patterns that let a query see few keys, in time and memory that grow with those few.

A window of left + right + 1 keys: blocks of queries become a batch of their own, each with the keys
that it can reach, cut from the sequence by a few shifted views. A pattern that only joins positions
a rate apart is as many sequences, each `rate` times shorter. What is left is dense attention of a
larger batch of shorter sequences, which `blockwise` does.
"""

import dataclasses
import sys

import keras

from keras_attention.kernels import blockwise, places, primitives

ops = keras.ops
_this = sys.modules[__name__]

# Fewer queries than this in a block make poor matrix products.
SMALLEST = 128


def why_not(task):
    """Why a task is not for this kernel, or None."""
    span = task.pattern.span() if hasattr(task.pattern, "span") else None
    if span is None or (span.rate == 1 and (span.left is None or span.right is None)):
        return "the pattern has no window and no rate"
    positions = task.positions
    if not positions.consecutive or not isinstance(positions.offset, int):
        return "positions are not consecutive from a known offset"
    lengths = task.query.shape[1], task.key.shape[1]
    if None in lengths:
        return "a length is not known"
    for array in (*task.masks, *task.biases):
        if array.shape[2] != 1 and array.shape[3] != 1:
            return "a mask or bias holds all pairs"
    if span.rate > 1:
        if lengths[0] != lengths[1] or positions.offset:
            return "the pattern has a rate, and queries and keys are not one sequence"
        if not span.by_distance:
            return "the pattern has a rate, and asks for more than the distance"
        if task.relative_keys is not None or task.relative_values is not None:
            return "the pattern has a rate, and embeddings of distances count them one by one"
        if lengths[0] < 4 * span.rate:
            return "the sequence is hardly longer than the rate"
        return None
    width = span.left + span.right + 1
    if width < 1 or 2 * (width + SMALLEST) > lengths[1]:
        return "the window is as wide as the sequence, or nearly"
    return None


def attend(task):
    """As `blockwise.attend`."""
    span = task.pattern.span()
    if span.rate > 1:
        return _apart(task, span.rate)
    return _windows(task, span)


# Rates


class _Stretched:
    """A pattern of positions a rate apart, counted one by one."""

    def __init__(self, pattern, rate):
        self.pattern, self.rate = pattern, rate

    def __call__(self, query, key):
        return self.pattern(query * self.rate, key * self.rate)

    def span(self):
        """The span that is left."""
        span = self.pattern.span()
        left, right = (x if x is None else x // self.rate for x in (span.left, span.right))
        return dataclasses.replace(span, left=left, right=right, rate=1)


def _apart(task, rate):
    """Positions a rate apart as sequences of their own."""
    length = task.query.shape[1]
    size = -(-length // rate)
    batch = ops.shape(task.query)[0]

    def fold(array, axis=1):
        """(B, T, …) as (B · rate, T / rate, …)."""
        whole = _fit(array, axis, 0, size * rate)
        shape = list(ops.shape(whole))
        split = ops.reshape(whole, (*shape[:axis], size, rate, *shape[axis + 1 :]))
        split = ops.moveaxis(split, axis + 1, 1)
        shape[axis] = size
        return ops.reshape(split, (shape[0] * rate, *shape[1:]))

    def stretched(between):
        return dataclasses.replace(
            between,
            function=lambda i, j, *arrays: between.function(i * rate, j * rate, *arrays),
        )

    pairs = _Pairs(batch, rate, fold, fold)
    masks = [pairs(mask) for mask in task.masks]
    if length % rate:
        masks.append(pairs(_there(length)))
    folded = task.but(
        query=fold(task.query),
        key=fold(task.key),
        value=fold(task.value),
        masks=tuple(masks),
        biases=tuple(map(pairs, task.biases)),
        between=tuple(map(stretched, task.between)),
        segments=task.segments and tuple(fold(_each(part, batch)) for part in task.segments),
        pattern=_Stretched(task.pattern, rate),
        positions=places.place(size, size),
    )
    output, normalizer = (blockwise if why_not(folded) else _this).attend(folded)
    heads, features = task.query.shape[2], task.value.shape[3]
    output = ops.reshape(output, (batch, rate, size, heads, features))
    output = ops.reshape(
        ops.transpose(output, (0, 2, 1, 3, 4)), (batch, size * rate, heads, features)
    )
    normalizer = ops.reshape(normalizer, (batch, rate, heads, size))
    normalizer = ops.reshape(ops.transpose(normalizer, (0, 2, 3, 1)), (batch, heads, size * rate))
    return _cut(output, 1, 0, length), _cut(normalizer, 2, 0, length)


# Windows


def _windows(task, span):
    """Blocks of queries as a batch."""
    queries, keys = task.query.shape[1], task.key.shape[1]
    offset = task.positions.offset
    # As many as the window has: fewer would read keys more often, more would see fewer of them.
    size = max(SMALLEST, span.left + span.right)
    count = -(-queries // size)
    reach = size + span.left + span.right
    # Where the first key of the first block would stand.
    first = offset - span.left

    def of_queries(array, axis=1):
        """(B, T, …) as (B · blocks, t, …)."""
        return _batch(_fit(array, axis, 0, count * size), axis, count, size)

    def of_keys(array, axis=1):
        """(B, S, …) as (B · blocks, s, …), the keys that each block can reach."""
        views = -(-reach // size)
        whole = _fit(array, axis, first, (count + views - 1) * size)
        return _batch(_views(whole, axis, count, views, reach), axis, count, reach)

    batch = ops.shape(task.query)[0]
    pairs = _Pairs(batch, count, of_queries, of_keys)
    positions = places.place(size, reach, offset=span.left)
    if not (span.by_distance and all(between.by_distance for between in task.between)):
        # The same distances, at positions of each block's own.
        starts = ops.arange(count, dtype="int32")[:, None] * size
        query = starts + (offset + ops.arange(size, dtype="int32"))
        key = starts + (first + ops.arange(reach, dtype="int32"))
        query, key = (ops.tile(x, (batch, 1)) for x in (query, key))
        positions = dataclasses.replace(positions, query=query, key=key)
    folded = task.but(
        query=of_queries(task.query),
        key=of_keys(task.key),
        value=of_keys(task.value),
        masks=(*map(pairs, task.masks), pairs(_there(keys))),
        biases=tuple(map(pairs, task.biases)),
        segments=task.segments
        and (
            of_queries(_each(task.segments[0], batch)),
            of_keys(_each(task.segments[1], batch)),
        ),
        positions=positions,
    )
    output, normalizer = blockwise.attend(folded)
    heads, features = task.query.shape[2], task.value.shape[3]
    output = ops.reshape(output, (batch, count * size, heads, features))
    normalizer = ops.reshape(normalizer, (batch, count, heads, size))
    normalizer = ops.reshape(ops.transpose(normalizer, (0, 2, 1, 3)), (batch, heads, count * size))
    return _cut(output, 1, 0, queries), _cut(normalizer, 2, 0, queries)


# What both share


def _there(keys):
    """A mask of the keys that there are, to be folded as the keys are."""
    return ops.ones((1, 1, 1, keys), "bool")


def _fit(array, axis, start, length):
    """`length` elements along an axis from `start`, with zeros before the first and after the last.

    `start` may be negative.
    """
    before = max(0, -start)
    array = _cut(array, axis, max(0, start), array.shape[axis])
    after = length - before - array.shape[axis]
    if after < 0:
        array = _cut(array, axis, 0, length - before)
    if before or after > 0:
        widths = [(0, 0)] * len(array.shape)
        widths[axis] = (before, max(0, after))
        array = ops.pad(array, widths)
    return array


def _views(array, axis, count, views, reach):
    """Of blocks in a row, along an axis, each with those that follow it, cut at `reach` elements.

    (B, …, (count + views − 1) · size, …) as (B, …, count · reach, …).
    """
    shape = list(ops.shape(array))
    before, size, after = shape[:axis], shape[axis] // (count + views - 1), shape[axis + 1 :]

    def forward(array):
        array = ops.reshape(array, (*before, count + views - 1, size, *after))
        parts = [_cut(array, axis, view, count) for view in range(views)]
        last = reach - (views - 1) * size
        parts[-1] = _cut(parts[-1], axis + 1, 0, last)
        found = ops.concatenate(parts, axis=axis + 1)
        return (ops.reshape(found, (*before, count * reach, *after)),), ()

    def backward(arrays, outputs, saved, upstream):
        found = ops.reshape(upstream[0], (*before, count, reach, *after))
        total = None
        for view in range(views):
            part = found[(slice(None),) * (axis + 1) + (slice(view * size, (view + 1) * size),)]
            widths = [(0, 0)] * (len(shape) + 1)
            widths[axis] = (view, views - 1 - view)
            widths[axis + 1] = (0, size - min(size, reach - view * size))
            part = ops.pad(part, widths)
            total = part if total is None else total + part
        return (ops.reshape(total, shape),)

    if "float" not in keras.backend.standardize_dtype(array.dtype):
        return forward(array)[0][0]
    # TensorFlow's own gradient of a slice is slow.
    return primitives.custom(lambda held: (forward, backward), [array], saves=False)[0]


def _cut(array, axis, start, length):
    """At most `length` elements along an axis from `start`."""
    if start == 0 and length >= array.shape[axis]:
        return array
    return array[(slice(None),) * axis + (slice(start, start + length),)]


def _batch(array, axis, count, size):
    """(B, …, count · size, …) as (B · count, …, size, …)."""
    shape = list(ops.shape(array))
    split = ops.reshape(array, (*shape[:axis], count, size, *shape[axis + 1 :]))
    split = ops.moveaxis(split, axis, 1)
    shape[axis] = size
    return ops.reshape(split, (shape[0] * count, *shape[1:]))


def _each(array, batch):
    """An array with one row for each sequence, of one that may have one for all."""
    if array.shape[0] == 1:
        return ops.repeat(array, batch, axis=0)
    return array


class _Pairs:
    """Folds arrays that broadcast to (B, H, T, S), and have only T or S, as queries or keys are."""

    def __init__(self, batch, count, of_queries, of_keys):
        self.batch, self.count = batch, count
        self.of_queries, self.of_keys = of_queries, of_keys

    def __call__(self, array):
        if array.shape[2] != 1:
            folded = self.of_queries(array, 2)
        elif array.shape[3] != 1:
            folded = self.of_keys(array, 3)
        else:
            return array if array.shape[0] == 1 else ops.repeat(array, self.count, axis=0)
        return ops.tile(folded, (self.batch, 1, 1, 1)) if array.shape[0] == 1 else folded
