"""Patterns that kernels derive from others, to compute them in parts."""

from __future__ import annotations

import dataclasses

from keras import ops

from keras_attention.core.hints import Tensor
from keras_attention.patterns.base import Pattern, Span, booleans


class Distances(Pattern, saved=False):
    """Attends at distances from `lowest` to `highest`: lowest ≤ j − i ≤ highest; None is no bound.

    >>> from keras_attention.patterns.derived import Distances
    >>> [j for j in range(10) if Distances(None, -3)(5, j)]
    [0, 1, 2]
    """

    def __init__(self, lowest: int | None, highest: int | None):
        self.lowest, self.highest = lowest, highest

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        distance = j - i
        if self.lowest is None:
            return ops.less_equal(distance, self.highest)
        above = ops.greater_equal(distance, self.lowest)
        if self.highest is None:
            return above
        return ops.logical_and(above, ops.less_equal(distance, self.highest))

    def span(self) -> Span:
        left = None if self.lowest is None else -self.lowest
        return Span(left, self.highest, by_distance=True, exact=True)


class Stretched(Pattern, saved=False):
    """A pattern of positions that are `rate` apart, renumbered consecutively.

    >>> from keras_attention import patterns
    >>> from keras_attention.patterns.derived import Stretched
    >>> [j for j in range(10) if Stretched(patterns.SlidingWindow(4, 2), 2)(5, j)]
    [3, 4, 5, 6]
    """

    def __init__(self, pattern: Pattern, rate: int):
        self.pattern, self.rate = pattern, rate

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return booleans(self.pattern, i * self.rate, j * self.rate)

    def span(self) -> Span:
        span = self.pattern.span()
        left, right = (x if x is None else x // self.rate for x in (span.left, span.right))
        return dataclasses.replace(span, left=left, right=right, rate=1)
