"""The built-in patterns: each is one comparison of two positions, or of two blocks of them.

`Distances` and `Stretched` are what kernels make of them, to compute them in parts.
"""

import dataclasses
import functools

import numpy as np
from keras import ops

from keras_attention.core.hints import Tensor
from keras_attention.patterns.base import Groups, Pattern, Span, booleans
from keras_attention.sequences import shapes


class Distances(Pattern, saved=False):
    """Attends at some distances: lowest ≤ j − i ≤ highest, where None is no bound."""

    def __init__(self, lowest: int | None, highest: int | None):
        self.lowest, self.highest = lowest, highest

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        bounds = []
        if self.lowest is not None:
            bounds.append(ops.greater_equal(j, i + self.lowest))
        if self.highest is not None:
            bounds.append(ops.less_equal(j, i + self.highest if self.highest else i))
        return functools.reduce(ops.logical_and, bounds)

    def span(self) -> Span:
        left = None if self.lowest is None else -self.lowest
        return Span(left, self.highest, by_distance=True, exact=True)


class Causal(Distances):
    """Attends to the present and the past: j ≤ i.

    >>> import keras
    >>> from keras_attention import patterns
    >>> keras.ops.convert_to_numpy(patterns.Causal()(range(4), range(4))).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """

    lowest, highest = None, 0

    def __init__(self):
        """Takes no bounds."""


class SlidingWindow(Distances):
    """Attends to a neighborhood: i − left ≤ j ≤ i + right.

    Keras's `sliding_window=w` is `SlidingWindow(w - 1, w - 1)`.

    Args:
        left: number of visible keys before the query, at least 0.
        right: number of visible keys after it.

    >>> from keras_attention import patterns
    >>> [j for j in range(10) if patterns.SlidingWindow(2, 1)(5, j)]
    [3, 4, 5, 6]
    """

    def __init__(self, left: int, right: int):
        self.left = shapes.check_count("left", left, 0)
        self.right = shapes.check_count("right", right, 0)
        super().__init__(-self.left, self.right)


class Dilated(Pattern):
    """Attends to every `rate`-th key, counted from the query: (i − j) mod rate = 0.

    >>> from keras_attention import patterns
    >>> [j for j in range(10) if patterns.Dilated(2)(5, j)]
    [1, 3, 5, 7, 9]
    """

    def __init__(self, rate: int):
        self.rate = shapes.check_count("rate", rate)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return ops.equal(ops.mod(i - j, self.rate), 0)

    def span(self) -> Span:
        return Span(rate=self.rate, by_distance=True, exact=True)


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
        near = ops.less(ops.abs(distance), self.rate)
        return ops.logical_or(ops.equal(ops.mod(distance, self.rate), 0), near)

    def span(self) -> Span:
        return Span(by_distance=True)

    def parts(self) -> list[Pattern]:
        near = SlidingWindow(self.rate - 1, self.rate - 1)
        return [near, Dilated(self.rate) & ~near]


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


class Global(Pattern):
    """The first positions, and those from `since` on, attend to all, and all to them.

    That is i < length or j < length, or with `since` i ≥ since or j ≥ since. Global attention of
    Longformer (Beltagy et al. 2020, section 3.1) and BigBird (Zaheer et al. 2020, section 2), in a
    union with a window: `SlidingWindow(w, w) | Global(n)`.

    >>> import keras
    >>> from keras_attention import patterns
    >>> longformer = patterns.SlidingWindow(1, 1) | patterns.Global(1)
    >>> keras.ops.convert_to_numpy(longformer(range(5), range(5))).astype(int)
    array([[1, 1, 1, 1, 1],
           [1, 1, 1, 0, 0],
           [1, 1, 1, 1, 0],
           [1, 0, 1, 1, 1],
           [1, 0, 0, 1, 1]])
    """

    def __init__(self, length: int, since: int | None = None):
        self.length = shapes.check_count("length", length)
        self.since = shapes.check_optional_count("since", since)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        seen = [ops.less(at, self.length) for at in (i, j)]
        if self.since is not None:
            seen += [ops.greater_equal(at, self.since) for at in (i, j)]
        return functools.reduce(ops.logical_or, seen)


class Block(Pattern):
    """Attends within blocks of `size` positions, and to `reach` blocks on either side.

    That is |⌊i / size⌋ − ⌊j / size⌋| ≤ reach, by default of the own block alone.

    >>> from keras_attention import patterns
    >>> [j for j in range(10) if patterns.Block(4)(5, j)]
    [4, 5, 6, 7]
    """

    def __init__(self, size: int, reach: int = 0):
        self.size = shapes.check_count("size", size)
        self.reach = shapes.check_count("reach", reach, 0)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        own, other = (ops.floor_divide(at, self.size) for at in (i, j))
        return ops.less_equal(ops.abs(own - other), self.reach)

    def span(self) -> Span:
        farthest = (1 + self.reach) * self.size - 1
        return Span(farthest, farthest)


class Stretched(Pattern, saved=False):
    """A pattern of positions that are `rate` apart, renumbered consecutively."""

    def __init__(self, pattern: Pattern, rate: int):
        self.pattern, self.rate = pattern, rate

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        return booleans(self.pattern, i * self.rate, j * self.rate)

    def span(self) -> Span:
        span = self.pattern.span()
        left, right = (x if x is None else x // self.rate for x in (span.left, span.right))
        return dataclasses.replace(span, left=left, right=right, rate=1)


class RandomBlocks(Pattern):
    """Attends to `count` blocks of keys, which are chosen at random for each block of queries.

    The random attention of BigBird (Zaheer et al. 2020, section 2), in blocks as in appendix D. Of
    a union, such as `BigBird`, only the pairs that are seen are computed. All heads have the same
    blocks; give each layer another seed.

    Args:
        length: the largest number of positions, from all of which blocks are chosen. Of a shorter
            sequence, those beyond its end are missing. Positions from `length` on see nothing, and
            are not seen.
        size: positions of a block.
        count: blocks that a block of queries sees, distinct.
        seed: of the choice. It does not depend on the backend.
        distance: how many blocks away they are at least; 1 for all others than itself.
        ends: how many blocks at each end are never chosen.

    Raises:
        ValueError: a number is not as described, or there are not so many other blocks.

    >>> from keras_attention import patterns
    >>> pattern = patterns.RandomBlocks(length=12, size=2, count=2, seed=1)
    >>> [j for j in range(12) if pattern(4, j)]
    [6, 7, 8, 9]
    """

    def __init__(
        self, length: int, size: int, count: int, seed: int = 0, distance: int = 1, ends: int = 0
    ):
        self.length = shapes.check_count("length", length)
        self.size = shapes.check_count("size", size)
        self.count = shapes.check_count("count", count)
        self.seed = shapes.check_count("seed", seed, 0)
        self.distance = shapes.check_count("distance", distance)
        self.ends = shapes.check_count("ends", ends, 0)
        others = max(0, -(-self.length // self.size) - 2 * self.ends - 2 * self.distance + 1)
        if self.count > others:
            raise ValueError(
                f"`count` must be at most the number of other blocks, {others}. "
                f"Received: count={count}, length={length}, size={size}, distance={distance}, "
                f"ends={ends}"
            )

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        blocks = ops.convert_to_tensor(_chosen(self))
        own, other = (ops.floor_divide(at, self.size) for at in (i, j))
        own = ops.clip(own, 0, blocks.shape[0] - 1)
        seen = ops.not_equal(i, i)
        for n in range(self.count):
            seen = ops.logical_or(seen, ops.equal(ops.take(blocks[:, n], own), other))
        inside = ops.logical_and(ops.less(j, self.length), ops.less(i, self.length))
        return ops.logical_and(seen, ops.logical_and(inside, ops.greater_equal(i, 0)))

    def groups(self) -> Groups:
        return _groups(self)


@functools.lru_cache(maxsize=64)
def _chosen(pattern):
    """The blocks (N, count) that each of N blocks sees in `RandomBlocks`."""
    # The numbers of a `RandomState` are the same in all versions of NumPy.
    rng, every = np.random.RandomState(pattern.seed), np.arange(-(-pattern.length // pattern.size))
    inner, found = every[pattern.ends : len(every) - pattern.ends], []
    for own in every:
        others = inner[np.abs(inner - own) >= pattern.distance]
        found.append(others[rng.permutation(len(others))[: pattern.count]])
    return np.stack(found).astype("int32")


@functools.lru_cache(maxsize=64)
def _groups(pattern):
    length, size, chosen = pattern.length, pattern.size, _chosen(pattern)
    within = np.arange(size)
    queries = np.arange(len(chosen))[:, None] * size + within
    keys = (chosen[:, :, None] * size + within).reshape(len(chosen), -1)
    queries, keys = (np.where(at < length, at, -1) for at in (queries, keys))
    return Groups(queries, keys, exact=True)
