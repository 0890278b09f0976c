"""Attention to several sets of keys that have none in common, put together.

Each set has its own output o and normalizer L = ln Σ exp(score). Together they are
Σ o · exp(L − L'), with L' = ln Σ exp(L): what one attention to all keys would have been. So a
pattern that is a union of a window and a stride is the two of them, and embeddings of clipped
distances are looked at near the diagonal only: beyond it they are one vector for all keys.
"""

import dataclasses

import keras

ops = keras.ops


def of(task):
    """The tasks that a task is made of, itself where it is in one piece."""
    if task.relative_keys is not None or task.relative_values is not None:
        return _by_distance(task)
    parts = task.pattern.parts() if hasattr(task.pattern, "parts") else [task.pattern]
    if len(parts) == 1 or not _long(task, 4 * max(part.span().rate for part in parts)):
        return [task]
    return [task.but(pattern=part, seed=_seed(task, n)) for n, part in enumerate(parts)]


def together(found):
    """One output and normalizer of a list of them."""
    if len(found) == 1:
        return found[0]
    largest = found[0][1]
    for _, normalizer in found[1:]:
        # Keras's `maximum` of float64 is of float32 on PyTorch, and less than the normalizers.
        largest = ops.where(largest < normalizer, normalizer, largest)
    largest = ops.stop_gradient(largest)
    shares = [ops.exp(normalizer - largest) for _, normalizer in found]
    total = sum(shares[1:], shares[0])
    output = sum(
        output * ops.transpose(share / total, (0, 2, 1))[..., None]
        for (output, _), share in zip(found, shares, strict=True)
    )
    return output, largest + ops.log(total)


def _long(task, length):
    """Whether both sequences stand at consecutive known places and are of at least a length."""
    lengths = task.query.shape[1], task.key.shape[1]
    known = isinstance(task.positions.offset, int) and task.positions.consecutive
    return known and None not in lengths and min(lengths) >= length


def _seed(task, part):
    """A seed for each part: one number would drop the same places in all."""
    return task.seed + part if isinstance(task.seed, int) else task.seed


@dataclasses.dataclass(frozen=True)
class _Within:
    """A pattern, or None, within bounds of the distance j − i, of which one may be None."""

    pattern: object
    lowest: int | None
    highest: int | None

    def __call__(self, query, key):
        distance = key[..., None, :] - query[..., :, None]
        allowed = None
        if self.lowest is not None:
            allowed = distance >= self.lowest
        if self.highest is not None:
            below = distance <= self.highest
            allowed = below if allowed is None else ops.logical_and(allowed, below)
        return (
            allowed if self.pattern is None else ops.logical_and(allowed, self.pattern(query, key))
        )

    def span(self):
        """The bounds as far as those of the pattern."""
        left = None if self.lowest is None else -self.lowest
        if not hasattr(self.pattern, "span"):
            return _Bounds(left, self.highest, 1, self.pattern is None)
        span = self.pattern.span()
        left, right = (
            min((x for x in pair if x is not None), default=None)
            for pair in ((left, span.left), (self.highest, span.right))
        )
        return _Bounds(left, right, span.rate, span.by_distance)


@dataclasses.dataclass(frozen=True)
class _Bounds:
    left: int | None
    right: int | None
    rate: int
    by_distance: bool


def _by_distance(task):
    """Near keys, by their embeddings, and those far before and far after, by one embedding each."""
    tables = task.relative_keys, task.relative_values
    tables = [table for table in tables if table is not None]
    far = tables[0].shape[1] // 2
    each = all(table.shape[0] in (1, task.key.shape[2]) for table in tables)
    if not each or not _long(task, max(1024, 8 * far)):
        return [task]
    pattern = task.pattern
    span = pattern.span() if hasattr(pattern, "span") else None
    near = _Within(pattern, 1 - far, far - 1)
    near = task.but(pattern=near, near=True, seed=_seed(task, 0))
    found = [near]
    if span is None or span.left is None or span.left >= far:
        before = _Within(pattern, None, -far)
        found.append(_constant(task, before, 0).but(seed=_seed(task, 1)))
    if span is None or span.right is None or span.right >= far:
        after = _Within(pattern, far, None)
        found.append(_constant(task, after, 2 * far).but(seed=_seed(task, 2)))
    return found


def _constant(task, pattern, row):
    """A task whose keys all have the embeddings of one distance."""

    def shifted(array, table):
        if table is None:
            return array
        return array + ops.cast(table[:, row], array.dtype)[None, None]

    return task.but(
        key=shifted(task.key, task.relative_keys),
        value=shifted(task.value, task.relative_values),
        relative_keys=None,
        relative_values=None,
        pattern=pattern,
    )
