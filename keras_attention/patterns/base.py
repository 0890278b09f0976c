"""Patterns: which keys a query may attend to, as predicates on the two absolute positions.

A pattern stores no array. Kernels evaluate it at positions, so training,
cached decoding (queries that start at an offset) and T ≠ S are one rule, and a kernel that reads
few keys evaluates few pairs. Patterns combine with `&`, `|` and `~`, compare and hash by value,
and are saved with the model.

A custom pattern is a subclass with one method:

>>> import keras
>>> from keras_attention import patterns
>>> @keras.saving.register_keras_serializable(package="my_package")
... class Even(patterns.Pattern):
...     def attends(self, i, j):
...         return j % 2 == 0
>>> bool((patterns.Causal() & Even())(5, 4)), bool((patterns.Causal() & Even())(5, 3))
(True, False)
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from typing import TypeAlias

import keras

from keras_attention import saving, shapes
from keras_attention.hints import Config, Tensor

ops = keras.ops

__all__ = [
    "And",
    "Block",
    "Causal",
    "Dilated",
    "Not",
    "Or",
    "Pattern",
    "Prefix",
    "SlidingWindow",
    "Span",
    "Strided",
    "get",
]


@dataclasses.dataclass(frozen=True)
class Span:
    """Bounds of a pattern: it attends only where −left ≤ j − i ≤ right and (i − j) mod rate = 0.

    None is no bound. `by_distance` means that the pattern depends on j − i alone, `exact` that it
    attends to all pairs within the bounds.

    >>> from keras_attention import patterns
    >>> patterns.SlidingWindow(3, 1).span()
    Span(left=3, right=1, rate=1, by_distance=True, exact=False)
    """

    left: int | None = None
    right: int | None = None
    rate: int = 1
    by_distance: bool = False
    exact: bool = False


class Pattern(saving.Configurable):
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

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        """Boolean array: may the query at position `i` attend to the key at position `j`?"""
        raise TypeError(f"{type(self).__name__} must implement `attends(self, i, j)`.")

    def span(self) -> Span:
        """Bounds on what queries see, a `Span`: a promise that lets kernels skip keys.

        Unbounded, unless a subclass overrides it.
        """
        return Span()

    def parts(self) -> list[Pattern]:
        """Disjoint patterns whose union is this one.

        Each may be bounded although their union is not.
        """
        return [self]

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Evaluates every pair: (..., T) and (..., S) positions give a (..., T, S) boolean array.

        Two plain numbers, or any two arrays without a last axis, are one pair.
        """
        query_positions = ops.convert_to_tensor(query_positions, dtype="int32")
        key_positions = ops.convert_to_tensor(key_positions, dtype="int32")
        if len(query_positions.shape) == 0:
            i, j = query_positions, key_positions
        else:
            # Not by `[..., None]`, which cannot be exported to ONNX from within a loop.
            i, j = ops.expand_dims(query_positions, -1), ops.expand_dims(key_positions, -2)
        allowed = ops.convert_to_tensor(_asked(self, i, j))
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


@saving.register
class Causal(Pattern):
    """Attends to the present and the past: j ≤ i.

    >>> import keras
    >>> from keras_attention import patterns
    >>> keras.ops.convert_to_numpy(patterns.Causal()(range(4), range(4))).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.less_equal(j, i)

    def span(self) -> Span:
        return Span(None, 0, by_distance=True, exact=True)


@saving.register
class SlidingWindow(Pattern):
    """Attends to a neighborhood: i − left ≤ j ≤ i + right.

    Keras's `sliding_window=w` is `SlidingWindow(w - 1, w - 1)`.

    Args:
        left: number of visible keys before the query, at least 0.
        right: number of visible keys after it.

    >>> import keras
    >>> from keras_attention import patterns
    >>> keras.ops.convert_to_numpy(patterns.SlidingWindow(1, 0)(range(4), range(4))).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """

    def __init__(self, left: int, right: int):
        self.left = shapes.check_count("left", left, 0)
        self.right = shapes.check_count("right", right, 0)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.logical_and(
            ops.greater_equal(j, i - self.left), ops.less_equal(j, i + self.right)
        )

    def span(self) -> Span:
        return Span(self.left, self.right, by_distance=True)


@saving.register
class Dilated(Pattern):
    """Attends to every `rate`-th key, counted from the query: (i − j) mod rate = 0.

    >>> import keras
    >>> from keras_attention import patterns
    >>> keras.ops.convert_to_numpy(patterns.Dilated(2)(range(4), range(4))).astype(int)
    array([[1, 0, 1, 0],
           [0, 1, 0, 1],
           [1, 0, 1, 0],
           [0, 1, 0, 1]])
    """

    def __init__(self, rate: int):
        self.rate = shapes.check_count("rate", rate)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.equal(ops.mod(i - j, self.rate), 0)

    def span(self) -> Span:
        return Span(rate=self.rate, by_distance=True)


@saving.register
class Strided(Pattern):
    """Attends to every `rate`-th key and to the near ones: (i − j) mod rate = 0, or |i − j| < rate.

    The strided pattern of Sparse Transformers (Child et al. 2019, section 4.3), as the union of its
    two heads.

    >>> from keras_attention import patterns
    >>> [j for j in range(10) if patterns.Strided(3)(9, j)]
    [0, 3, 6, 7, 8, 9]
    """

    def __init__(self, rate: int):
        self.rate = shapes.check_count("rate", rate)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        distance = i - j
        return ops.logical_or(
            ops.equal(ops.mod(distance, self.rate), 0), ops.less(ops.abs(distance), self.rate)
        )

    def span(self) -> Span:
        return Span(by_distance=True)

    def parts(self) -> list[Pattern]:
        near = SlidingWindow(self.rate - 1, self.rate - 1)
        return [near, Dilated(self.rate) & ~near]


@saving.register
class Prefix(Pattern):
    """Attends to the first keys: j < length. `Causal() | Prefix(n)` is a prefix language model.

    >>> import keras
    >>> from keras_attention import patterns
    >>> prefix_model = patterns.Causal() | patterns.Prefix(2)
    >>> keras.ops.convert_to_numpy(prefix_model(range(4), range(4))).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """

    def __init__(self, length: int):
        self.length = shapes.check_count("length", length)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.less(j, self.length + 0 * i)


@saving.register
class Block(Pattern):
    """Attends within blocks of `size` positions: ⌊i / size⌋ = ⌊j / size⌋.

    >>> import keras
    >>> from keras_attention import patterns
    >>> keras.ops.convert_to_numpy(patterns.Block(2)(range(4), range(4))).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1],
           [0, 0, 1, 1]])
    """

    def __init__(self, size: int):
        self.size = shapes.check_count("size", size)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.equal(ops.floor_divide(i, self.size), ops.floor_divide(j, self.size))

    def span(self) -> Span:
        return Span(self.size - 1, self.size - 1)


def _asked(pattern, i, j):
    """The booleans of a pattern; an additive mask would be inverted."""
    try:
        allowed = pattern.attends(i, j)
    except Exception as error:
        # Each backend raises another error for an array in an `if`, an `and` or a `not`.
        if not re.search(r"truth value|\bbool|boolean (value|conversion)", str(error), re.I):
            raise
        raise TypeError(
            f"`attends(self, i, j)` of {type(pattern).__name__} is given arrays of positions. "
            "Combine comparisons of them with `&`, `|` and `~`, each in parentheses, not with "
            f"`and`, `or`, `not` and `if`. Received: {type(error).__name__}: {error}"
        ) from error
    kind = type(allowed).__name__
    if hasattr(allowed, "dtype"):
        kind = keras.backend.standardize_dtype(allowed.dtype)
    if kind != "bool":
        raise TypeError(
            "`attends(self, i, j)` of a pattern must return booleans, True where the query may "
            f"attend to the key. Received: {kind} from {pattern!r}"
        )
    return allowed


# The maximum number of parts of a conjunction; their number is a product.
_MOST_PARTS = 16


def _depth(parts):
    """The nesting depth of a pattern of these parts."""
    return 1 + max(getattr(part, "depth", 0) for part in parts)


class _Combination(Pattern):
    """Two or more patterns under a commutative and idempotent operator."""

    symbol = ""

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
        self.depth = _depth(parts)
        saving.check_depth(type(self).__name__, self.depth)

    def _key(self):
        return frozenset(self.patterns)

    def __repr__(self):
        if len(self.patterns) == 1:
            return f"{type(self).__name__}({self.patterns!r})"
        return "(" + f" {self.symbol} ".join(map(repr, self.patterns)) + ")"


@saving.register
class And(_Combination):
    """Attends where all of `patterns` do. Written `first & second`.

    >>> from keras_attention import patterns
    >>> near = patterns.Causal() & patterns.SlidingWindow(2, 2)
    >>> [j for j in range(10) if near(5, j)]
    [3, 4, 5]
    """

    symbol = "&"

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return functools.reduce(ops.logical_and, [_asked(part, i, j) for part in self.patterns])

    def span(self) -> Span:
        spans = [pattern.span() for pattern in self.patterns]
        return Span(
            _bound(min, [span.left for span in spans if span.left is not None]),
            _bound(min, [span.right for span in spans if span.right is not None]),
            math.lcm(*(span.rate for span in spans)),
            all(span.by_distance for span in spans),
        )

    def parts(self) -> list[Pattern]:
        found: list[list[Pattern]] = [[]]
        for pattern in self.patterns:
            parts = pattern.parts()
            if len(found) * len(parts) > _MOST_PARTS:
                parts = [pattern]
            found = [[*some, part] for some in found for part in parts]
        return [self] if len(found) == 1 else [And(some) for some in found]


@saving.register
class Or(_Combination):
    """Attends where any of `patterns` does. Written `first | second`.

    >>> from keras_attention import patterns
    >>> far = patterns.SlidingWindow(1, 0) | patterns.Prefix(1)
    >>> [j for j in range(10) if far(5, j)]
    [0, 4, 5]
    """

    symbol = "|"

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return functools.reduce(ops.logical_or, [_asked(part, i, j) for part in self.patterns])

    def span(self) -> Span:
        spans = [pattern.span() for pattern in self.patterns]
        lefts, rights = [span.left for span in spans], [span.right for span in spans]
        return Span(
            _widest(lefts),
            _widest(rights),
            math.gcd(*(span.rate for span in spans)),
            all(span.by_distance for span in spans),
        )


@saving.register
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
        self.depth = _depth([pattern])
        saving.check_depth("Not", self.depth)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.logical_not(_asked(self.pattern, i, j))

    def span(self) -> Span:
        return Span(by_distance=self.pattern.span().by_distance)

    def __repr__(self):
        return f"~{self.pattern!r}"


def _bound(choose, bounds):
    return choose(bounds) if bounds else None


def _widest(bounds):
    return None if None in bounds else max(bounds)


def every(*patterns: Pattern | None) -> Pattern | None:
    """All of the patterns that are not None, under `&`; None where there are none."""
    found = [pattern for pattern in patterns if pattern is not None]
    if len(found) < 2:
        return found[0] if found else None
    return And(found)


BUILTIN = {"causal": Causal}


# What the slot may be given: an object, its saved config, or a name.
PatternLike: TypeAlias = Pattern | Config | str


def get(pattern: PatternLike | None) -> Pattern | None:
    """The pattern that `pattern` names: a pattern, its saved config, "causal" or None.

    >>> from keras_attention import patterns
    >>> patterns.get("causal")
    Causal()
    """
    return saving.slot("pattern", Pattern, BUILTIN, pattern, optional=True)
