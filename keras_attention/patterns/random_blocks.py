"""`RandomBlocks`: a few blocks of keys chosen at random, of BigBird."""

from __future__ import annotations

import functools

import numpy as np
from keras import ops

from keras_attention import shapes
from keras_attention.hints import Tensor
from keras_attention.patterns.base import Pattern
from keras_attention.patterns.groups import Groups


class RandomBlocks(Pattern):
    """Attends to `count` blocks of keys, which are chosen at random for each block of queries.

    The random attention of BigBird (Zaheer et al. 2020, section 2), in blocks as in appendix D.
    BigBird is the union with a window and with global tokens,
    `SlidingWindow(w, w) | Global(n) | RandomBlocks(length, size, count)`, of which only the pairs
    that are seen are computed. All heads have the same blocks; give each layer another seed.

    Args:
        length: the largest number of positions, from all of which blocks are chosen. Of a shorter
            sequence, those beyond its end are missing. Positions from `length` on see nothing, and
            are not seen.
        size: positions of a block.
        count: blocks that a block of queries sees, others than itself, and distinct.
        seed: of the choice. It does not depend on the backend.

    Raises:
        ValueError: a number is not as described, or there are not so many other blocks.

    >>> from keras_attention import patterns
    >>> pattern = patterns.RandomBlocks(length=12, size=2, count=2, seed=1)
    >>> [j for j in range(12) if pattern(4, j)]
    [6, 7, 8, 9]
    """

    def __init__(self, length: int, size: int, count: int, seed: int = 0):
        self.length = shapes.check_count("length", length)
        self.size = shapes.check_count("size", size)
        self.count = shapes.check_count("count", count)
        self.seed = shapes.check_count("seed", seed, 0)
        others = -(-self.length // self.size) - 1
        if self.count > others:
            raise ValueError(
                f"`count` must be at most the number of other blocks, {others}. "
                f"Received: count={count}, length={length}, size={size}"
            )

    def _blocks(self):
        """The blocks (N, count) that each block sees."""
        return _chosen(-(-self.length // self.size), self.count, self.seed)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        blocks = ops.convert_to_tensor(self._blocks())
        own, other = (ops.floor_divide(at, self.size) for at in (i, j))
        own = ops.clip(own, 0, blocks.shape[0] - 1)
        seen = ops.not_equal(i, i)
        for n in range(self.count):
            seen = ops.logical_or(seen, ops.equal(ops.take(blocks[:, n], own), other))
        inside = ops.logical_and(ops.less(j, self.length), ops.less(i, self.length))
        return ops.logical_and(seen, ops.logical_and(inside, ops.greater_equal(i, 0)))

    def groups(self) -> Groups:
        return _groups(self.length, self.size, self.count, self.seed)


@functools.lru_cache(maxsize=64)
def _chosen(blocks, count, seed):
    # The numbers of a `RandomState` are the same in all versions of NumPy.
    rng = np.random.RandomState(seed)
    found = np.stack([rng.permutation(blocks - 1)[:count] for _ in range(blocks)])
    # Of the others: those after itself are one further.
    return (found + (found >= np.arange(blocks)[:, None])).astype("int32")


@functools.lru_cache(maxsize=64)
def _groups(length, size, count, seed):
    blocks = -(-length // size)
    within = np.arange(size)
    queries = np.arange(blocks)[:, None] * size + within
    keys = (_chosen(blocks, count, seed)[:, :, None] * size + within).reshape(blocks, -1)
    queries, keys = (np.where(at < length, at, -1) for at in (queries, keys))
    return Groups(queries, keys, exact=True)
