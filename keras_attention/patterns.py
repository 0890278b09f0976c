"""Patterns: which keys a query may attend to, as predicates on the two absolute positions.

A pattern never holds an array. It is asked about positions when a kernel needs it, so training,
cached decoding (queries that start at an offset) and T ≠ S are one rule, and a kernel that looks at
few keys asks about few. Patterns combine with `&`, `|` and `~`, compare and hash by value, and are
saved with the model.

A pattern of your own is a subclass with one method:

>>> import keras
>>> from keras_attention import patterns
>>> @keras.saving.register_keras_serializable(package="my_package")
... class Even(patterns.Pattern):
...     def attends(self, i, j):
...         return j % 2 == 0
>>> bool((patterns.Causal() & Even())(5, 4)), bool((patterns.Causal() & Even())(5, 3))
(True, False)
"""

import keras

from keras_attention import saving, shapes

ops = keras.ops


class Pattern(saving.Configurable):
    """A rule that says whether the query at position i may attend to the key at position j.

    Subclasses implement `attends(i, j)` on integer arrays that broadcast against each other, with
    keras.ops or the arithmetic and comparison operators. Constructor arguments are stored in
    attributes of the same names, and are then saved without further code.
    """

    def attends(self, i, j):
        """Boolean array: may the query at position `i` attend to the key at position `j`?"""
        raise TypeError(f"{type(self).__name__} must implement `attends(self, i, j)`.")

    def __call__(self, query_positions, key_positions):
        """Asks about every pair: (..., T) and (..., S) positions give a (..., T, S) boolean array.

        Two plain numbers, or any two arrays without a last axis, are one pair.
        """
        query_positions = ops.convert_to_tensor(query_positions, dtype="int32")
        key_positions = ops.convert_to_tensor(key_positions, dtype="int32")
        if len(query_positions.shape) == 0:
            return self.attends(query_positions, key_positions)
        return self.attends(query_positions[..., :, None], key_positions[..., None, :])

    def __and__(self, other):
        return And([self, other]) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other):
        return Or([self, other]) if isinstance(other, Pattern) else NotImplemented

    def __invert__(self):
        return Not(self)


@saving.register
class Causal(Pattern):
    """Attends to the present and the past: j ≤ i."""

    def attends(self, i, j):
        return ops.less_equal(j, i)


@saving.register
class SlidingWindow(Pattern):
    """Attends to a neighbourhood: i − left ≤ j ≤ i + right.

    Keras's `sliding_window=w` is `SlidingWindow(w - 1, w - 1)`.

    Args:
        left: how many keys before the query are seen, at least 0.
        right: how many keys after it.
    """

    def __init__(self, left, right):
        shapes.check_count("left", left, 0)
        shapes.check_count("right", right, 0)
        self.left = left
        self.right = right

    def attends(self, i, j):
        return ops.logical_and(
            ops.greater_equal(j, i - self.left), ops.less_equal(j, i + self.right)
        )


@saving.register
class Dilated(Pattern):
    """Attends to every `rate`-th key, counted from the query: (i − j) mod rate = 0."""

    def __init__(self, rate):
        shapes.check_count("rate", rate)
        self.rate = rate

    def attends(self, i, j):
        return ops.equal(ops.mod(i - j, self.rate), 0)


@saving.register
class Strided(Pattern):
    """Attends to every `rate`-th key and to the near ones: (i − j) mod rate = 0, or |i − j| < rate.

    The strided pattern of Sparse Transformers (Child et al. 2019, section 4.3), whose two heads are
    here one union.
    """

    def __init__(self, rate):
        shapes.check_count("rate", rate)
        self.rate = rate

    def attends(self, i, j):
        distance = i - j
        return ops.logical_or(
            ops.equal(ops.mod(distance, self.rate), 0), ops.less(ops.abs(distance), self.rate)
        )


@saving.register
class Prefix(Pattern):
    """Attends to the first keys: j < length. `Causal() | Prefix(n)` is a prefix language model."""

    def __init__(self, length):
        shapes.check_count("length", length)
        self.length = length

    def attends(self, i, j):
        return ops.less(j, self.length + 0 * i)


@saving.register
class Block(Pattern):
    """Attends within blocks of `size` positions: ⌊i / size⌋ = ⌊j / size⌋."""

    def __init__(self, size):
        shapes.check_count("size", size)
        self.size = size

    def attends(self, i, j):
        return ops.equal(ops.floor_divide(i, self.size), ops.floor_divide(j, self.size))


class _Combination(Pattern):
    """Two or more patterns under an operator that neither order nor repetition matters to."""

    symbol = None

    def __init__(self, patterns):
        parts = []
        for pattern in patterns:
            if not isinstance(pattern, Pattern):
                raise TypeError(f"Expected patterns. Received: {pattern!r}")
            parts.extend(pattern.patterns if type(pattern) is type(self) else [pattern])
        if not parts:
            raise ValueError(f"{type(self).__name__} needs at least one pattern. Received: none")
        self.patterns = parts

    def _key(self):
        return frozenset(self.patterns)

    def __repr__(self):
        if len(self.patterns) == 1:
            return f"{type(self).__name__}({self.patterns!r})"
        return "(" + f" {self.symbol} ".join(map(repr, self.patterns)) + ")"


@saving.register
class And(_Combination):
    """Attends where all of `patterns` do. Written `first & second`."""

    symbol = "&"

    def attends(self, i, j):
        allowed = self.patterns[0].attends(i, j)
        for pattern in self.patterns[1:]:
            allowed = ops.logical_and(allowed, pattern.attends(i, j))
        return allowed


@saving.register
class Or(_Combination):
    """Attends where any of `patterns` does. Written `first | second`."""

    symbol = "|"

    def attends(self, i, j):
        allowed = self.patterns[0].attends(i, j)
        for pattern in self.patterns[1:]:
            allowed = ops.logical_or(allowed, pattern.attends(i, j))
        return allowed


@saving.register
class Not(Pattern):
    """Attends where `pattern` does not. Written `~pattern`."""

    def __init__(self, pattern):
        if not isinstance(pattern, Pattern):
            raise TypeError(f"Expected a pattern. Received: {pattern!r}")
        self.pattern = pattern

    def attends(self, i, j):
        return ops.logical_not(self.pattern.attends(i, j))

    def __repr__(self):
        return f"~{self.pattern!r}"


def every(*patterns):
    """All of the patterns that are not None, under `&`; None where there are none."""
    patterns = [pattern for pattern in patterns if pattern is not None]
    if len(patterns) < 2:
        return patterns[0] if patterns else None
    return And(patterns)


BUILTIN = {"causal": Causal}


def get(pattern):
    """The pattern that `pattern` names: a pattern, its saved config, "causal" or None."""
    return saving.slot("pattern", Pattern, BUILTIN, pattern, optional=True)
