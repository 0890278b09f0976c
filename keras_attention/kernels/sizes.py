"""Arithmetic of sizes: integers, or integer scalars where a graph does not know a length."""

import keras

ops = keras.ops


def known(*sizes):
    """Whether all sizes are plain integers."""
    return all(isinstance(size, int) for size in sizes)


def least(first, second):
    """The smaller of two sizes."""
    return min(first, second) if known(first, second) else ops.minimum(first, second)


def most(first, second):
    """The larger of two sizes."""
    return max(first, second) if known(first, second) else ops.maximum(first, second)


def blocks(length, size):
    """How many blocks of at most `size` a length needs, and how long each is: as even as can be."""
    if known(length, size):
        for count in range(max(1, -(-length // size)), 2 * -(-length // size)):
            if length % count == 0:
                return count, length // count
    # Lengths that a graph does not know may turn out to be 0.
    size = most(1, size)
    count = most(1, -(-length // size))
    return count, most(1, -(-length // count))
