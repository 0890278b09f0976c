"""`Groups`: queries with the keys that they see, of patterns whose neighbors are scattered."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """Groups of queries, each with all the keys that its queries may see.

    It is a promise about a pattern, as `Span` is, for queries and keys that are one sequence of
    `length` positions: a kernel computes each group as a short sequence.

    Args:
        queries: positions (N, t) of the queries of N groups, a NumPy array; −1 is none. Each
            position from `prefix` on is in one place.
        keys: positions (N, s) of their keys, likewise, without those of the prefix.
        prefix: the number of positions before all others whose keys are in every group, and whose
            queries are in none: they may see all keys.
        exact: whether the pattern attends to all pairs of a group.
        grid: the sizes of the grid of positions from `prefix` on, in row-major order, or None.
        alike: a group of which every other is a copy, moved on the grid: with the same differences
            of coordinates between a query and a key that it sees, place by place. None if unknown.

    >>> from keras_attention import patterns
    >>> groups = patterns.GridWindow((2, 4), 2).groups()
    >>> groups.queries
    array([[0, 1, 4, 5],
           [2, 3, 6, 7]])
    """

    queries: np.ndarray
    keys: np.ndarray
    prefix: int = 0
    exact: bool = False
    grid: tuple[int, ...] | None = None
    alike: int | None = None

    @functools.cached_property
    def length(self) -> int:
        """The number of positions."""
        return self.prefix + int((self.queries >= 0).sum())

    @functools.cached_property
    def pairs(self) -> int:
        """The number of pairs that a kernel computes."""
        count, queries = self.queries.shape
        keys = self.keys.shape[1] + self.prefix
        return count * queries * keys + self.prefix * self.length


@functools.lru_cache(maxsize=64)
def inexact(groups: Groups) -> Groups:
    """The same groups, of a pattern that leaves out some of their pairs."""
    return dataclasses.replace(groups, exact=False)


@functools.lru_cache(maxsize=64)
def shorter(groups: Groups, length: int) -> Groups:
    """The groups of the first `length` positions."""
    if length == groups.length:
        return groups
    queries, keys = (np.where(at < length, at, -1) for at in (groups.queries, groups.keys))
    left = (queries >= 0).any(axis=1)
    return dataclasses.replace(groups, queries=queries[left], keys=keys[left], alike=None)


@functools.lru_cache(maxsize=64)
def boxes(grid, box, halo, shift, prefix, exact=True):
    """Groups of a grid cut into boxes from `shift` on, with keys up to `halo` beyond each box."""
    # What is left before the first and after the last box are boxes too: if `box` divides the axis
    # one and the same, in which the pattern has to tell them apart.
    firsts, wraps = [], []
    for size, width, first in zip(grid, box, shift, strict=True):
        wraps.append(first > 0 and size % width == 0)
        firsts.append(np.arange(first if wraps[-1] or not first else first - width, size, width))

    def positions(margins):
        """(N, n): those of each box and `margins` around it."""
        at, real = np.zeros((), int), np.ones((), bool)
        for axis, (size, width, margin) in enumerate(zip(grid, box, margins, strict=True)):
            along = firsts[axis][:, None] + np.arange(-margin, width + margin)
            along = along % size if wraps[axis] else along
            apart = [1] * (2 * len(grid))
            apart[axis], apart[len(grid) + axis] = along.shape
            along = along.reshape(apart)
            at, real = at * size + along, real & (along >= 0) & (along < size)
        count = np.prod([len(first) for first in firsts])
        return np.where(real, at + prefix, -1).reshape(count, -1)

    queries = positions((0,) * len(grid))
    keys = positions(halo) if any(halo) else queries
    # One that lies inside the grid, in its own order.
    ordered = (keys >= 0).all(1) & (np.diff(keys, axis=1, prepend=-1) > 0).all(1)
    alike = int(np.argmax(ordered)) if ordered.any() else None
    return Groups(queries, keys, prefix, exact and not any(wraps), tuple(grid), alike)
