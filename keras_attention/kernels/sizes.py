"""Arithmetic of sizes: integers, or integer scalars if a length is unknown in a graph."""

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
    """The number of blocks of at most `size` in a length, and their length, as even as possible."""
    if known(length, size):
        for count in range(max(1, -(-length // size)), 2 * -(-length // size)):
            if length % count == 0:
                return count, length // count
    # Lengths unknown in a graph may be 0.
    size = most(1, size)
    count = most(1, -(-length // size))
    return count, most(1, -(-length // count))
