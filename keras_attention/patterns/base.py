"""The base of all patterns, and what `&`, `|` and `~` make of them."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import ops

from keras_attention import saving
from keras_attention.core.hints import Tensor
from keras_attention.sequences import shapes


@dataclasses.dataclass(frozen=True)
class Span:
    """Bounds of a pattern: it attends only where −left ≤ j − i ≤ right and (i − j) mod rate = 0.

    None is no bound. `by_distance` means that the pattern depends on j − i alone, `exact` that it
    attends to all pairs within the bounds.

    >>> from keras_attention import patterns
    >>> patterns.SlidingWindow(3, 1).span()
    Span(left=3, right=1, rate=1, by_distance=True, exact=True)
    """

    left: int | None = None
    right: int | None = None
    rate: int = 1
    by_distance: bool = False
    exact: bool = False


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


class Pattern(saving.Configurable, saved=False):
    """A rule whether the query at position i may attend to the key at position j.

    Subclasses implement `attends(i, j)` on integer arrays that broadcast against each other, with
    keras.ops or the arithmetic and comparison operators. Store constructor arguments in
    attributes of the same names, and they are saved.

    >>> import keras
    >>> from keras_attention import patterns
    >>> @keras.saving.register_keras_serializable(package="my_package")
    ... class Before(patterns.Pattern):
    ...     def __init__(self, distance):
    ...         self.distance = distance
    ...     def attends(self, i, j):
    ...         return i - j == self.distance
    >>> Before(2) & patterns.Causal()
    (Before(distance=2) & Causal())
    """

    # Whether positions count real tokens in an `Encoder`. A cell of a grid is where it is, whether
    # those before it are masked or not.
    counts = True
    # How deep patterns are nested in it.
    depth = 0

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        """Boolean array: may the query at position `i` attend to the key at position `j`?"""
        raise TypeError(f"{type(self).__name__} must implement `attends(self, i, j)`.")

    def span(self) -> Span:
        """Bounds on what queries see, a `Span`: a promise that lets kernels skip keys.

        Unbounded, unless a subclass overrides it.
        """
        return Span()

    def groups(self) -> Groups | None:
        """Groups of queries and of the keys that they see, or None: a promise, as `span` is.

        For patterns whose visible keys are not near one another in the sequence.
        """
        return None

    @functools.cached_property
    def sees_itself(self) -> bool:
        """Whether a query surely sees the key at its own position, by the span."""
        span = self.span()
        least = min(span.left or 0, span.right or 0)
        return span.exact and least >= 0

    def parts(self) -> list[Pattern]:
        """Disjoint patterns whose union is this one.

        Each may be bounded although their union is not.
        """
        return [self]

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Evaluates all pairs (..., T, S) of positions (..., T) and (..., S), or of two numbers."""
        query_positions = ops.convert_to_tensor(query_positions, dtype="int32")
        key_positions = ops.convert_to_tensor(key_positions, dtype="int32")
        if len(query_positions.shape) == 0:
            i, j = query_positions, key_positions
        else:
            # Not by `[..., None]`, which cannot be exported to ONNX from within a loop.
            i, j = ops.expand_dims(query_positions, -1), ops.expand_dims(key_positions, -2)
        allowed = ops.convert_to_tensor(booleans(self, i, j))
        if len(allowed.shape) < min(2, len(i.shape)):
            # The same for all pairs.
            allowed = ops.logical_and(allowed, ops.logical_or(ops.equal(i, i), ops.equal(j, j)))
        return allowed

    def __and__(self, other: Pattern) -> And:
        return And([self, other]) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other: Pattern) -> Or:
        return Or([self, other]) if isinstance(other, Pattern) else NotImplemented

    def __invert__(self) -> Not:
        return Not(self)

    def __bool__(self):
        # Otherwise `a and b` would be `b`, and a rule would be lost silently.
        raise TypeError(
            "A pattern is neither true nor false. Combine patterns with `&`, `|` and `~`, not with "
            f"`and`, `or` and `not`. Received: {self!r}"
        )


def booleans(pattern, i, j):
    """The booleans of a pattern; an additive mask would be inverted."""
    try:
        allowed = pattern.attends(i, j)
    except Exception as error:
        # Each backend raises another error for an array in an `if`, an `and` or a `not`. One from
        # here is of a part of a combination.
        unclear = re.search(r"truth value|\bbool|boolean (value|conversion)", str(error), re.I)
        if not unclear or str(error).startswith("`attends("):
            raise
        raise TypeError(
            f"`attends(self, i, j)` of {type(pattern).__name__} is given arrays of positions. "
            "Combine comparisons of them with `&`, `|` and `~`, each in parentheses, not with "
            f"`and`, `or`, `not` and `if`. Received: {type(error).__name__}: {error}"
        ) from error
    kind = type(allowed).__name__
    if shapes.is_array(allowed):
        kind = keras.backend.standardize_dtype(allowed.dtype)
    if kind != "bool":
        raise TypeError(
            "`attends(self, i, j)` of a pattern must return booleans, True where the query may "
            f"attend to the key. Received: {kind} from {pattern!r}"
        )
    return allowed


# The maximum number of parts of a conjunction; their number is a product.
_MOST_PARTS = 16


class _Combination(Pattern, saved=False):
    """Two or more patterns under a commutative and idempotent operator."""

    symbol = ""
    combined: Callable[[Tensor, Tensor], Tensor]

    def __init__(self, patterns: Sequence[Pattern]):
        if not isinstance(patterns, (list, tuple)):
            raise TypeError(
                f"`patterns` of {type(self).__name__} must be a list of patterns. "
                f"Received: {patterns!r}"
            )
        parts: list[Pattern] = []
        for pattern in patterns:
            if not isinstance(pattern, Pattern):
                raise TypeError(f"Expected patterns. Received: {pattern!r}")
            if isinstance(pattern, _Combination) and type(pattern) is type(self):
                parts.extend(pattern.patterns)
            else:
                parts.append(pattern)
        if not parts:
            raise ValueError(f"{type(self).__name__} needs at least one pattern. Received: none")
        self.patterns: list[Pattern] = parts
        self.depth = 1 + max(part.depth for part in parts)
        saving.check_depth(type(self).__name__, self.depth)

    @property
    def counts(self) -> bool:  # type: ignore[override]
        return all(part.counts for part in self.patterns)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return functools.reduce(self.combined, [booleans(part, i, j) for part in self.patterns])

    def _key(self):
        return frozenset(self.patterns)

    def __repr__(self):
        if len(self.patterns) == 1:
            return f"{type(self).__name__}({self.patterns!r})"
        return "(" + f" {self.symbol} ".join(map(repr, self.patterns)) + ")"


class And(_Combination):
    """Attends where all of `patterns` do. Written `first & second`.

    >>> from keras_attention import patterns
    >>> near = patterns.Causal() & patterns.SlidingWindow(2, 2)
    >>> [j for j in range(10) if near(5, j)]
    [3, 4, 5]
    """

    symbol, combined = "&", staticmethod(ops.logical_and)

    def span(self) -> Span:
        spans = [pattern.span() for pattern in self.patterns]
        return Span(
            min((span.left for span in spans if span.left is not None), default=None),
            min((span.right for span in spans if span.right is not None), default=None),
            math.lcm(*(span.rate for span in spans)),
            all(span.by_distance for span in spans),
            all(span.exact for span in spans),
        )

    def groups(self) -> Groups | None:
        each = (pattern.groups() for pattern in self.patterns)
        found = [groups for groups in each if groups is not None]
        if not found:
            return None
        fewest = min(found, key=lambda groups: groups.pairs)
        return fewest if len(self.patterns) == 1 else inexact(fewest)

    def parts(self) -> list[Pattern]:
        found: list[list[Pattern]] = [[]]
        for pattern in self.patterns:
            parts = pattern.parts()
            if len(found) * len(parts) > _MOST_PARTS:
                parts = [pattern]
            found = [[*some, part] for some in found for part in parts]
        return [self] if len(found) == 1 else [And(some) for some in found]


class Or(_Combination):
    """Attends where any of `patterns` does. Written `first | second`.

    >>> from keras_attention import patterns
    >>> far = patterns.SlidingWindow(1, 0) | patterns.Prefix(1)
    >>> [j for j in range(10) if far(5, j)]
    [0, 4, 5]
    """

    symbol, combined = "|", staticmethod(ops.logical_or)

    def span(self) -> Span:
        spans = [pattern.span() for pattern in self.patterns]
        lefts, rights = [span.left for span in spans], [span.right for span in spans]
        rate, alike = math.gcd(*(span.rate for span in spans)), [span.by_distance for span in spans]
        return Span(_widest(lefts), _widest(rights), rate, all(alike))

    def parts(self) -> list[Pattern]:
        span = self.span()
        bounded = span.rate > 1 or None not in (span.left, span.right)
        if bounded or len(self.patterns) > _MOST_PARTS or not all(map(_few, self.patterns)):
            return [self]
        # What one has, no later one does.
        found: list[Pattern] = []
        for n, pattern in enumerate(self.patterns):
            found.append(And([pattern, *map(Not, self.patterns[:n])]) if n else pattern)
        return found


class Not(Pattern):
    """Attends where `pattern` does not. Written `~pattern`.

    >>> from keras_attention import patterns
    >>> [j for j in range(10) if (~patterns.Causal())(5, j)]
    [6, 7, 8, 9]
    """

    def __init__(self, pattern: Pattern):
        if not isinstance(pattern, Pattern):
            raise TypeError(f"Expected a pattern. Received: {pattern!r}")
        self.pattern = pattern
        self.depth = 1 + pattern.depth
        saving.check_depth("Not", self.depth)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.logical_not(booleans(self.pattern, i, j))

    @property
    def counts(self) -> bool:  # type: ignore[override]
        return self.pattern.counts

    def span(self) -> Span:
        return Span(by_distance=self.pattern.span().by_distance)

    def __repr__(self):
        return f"~{self.pattern!r}"


def _few(pattern):
    """Whether a pattern alone lets a query see few keys."""
    span = pattern.span()
    near = None not in (span.left, span.right)
    return near or span.rate > 1 or pattern.groups() is not None


def _widest(bounds):
    return None if None in bounds else max(bounds)
