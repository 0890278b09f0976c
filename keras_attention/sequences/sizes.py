"""Arithmetic of sizes.

A size is an integer, or, where it is unknown, what the backend has in its place: an integer scalar
in a graph of TensorFlow, and a symbolic dimension of JAX, which stands for all integers from 1 on.
Code outside this file need not know which. JAX's can be added, multiplied and divided, and are
sizes of arrays, but an order of two of them is mostly an error.
"""

from keras_attention.backend import backend

_KNOWN = (int, *backend.TRACED_SIZES)


def known(*sizes):
    """Whether all sizes are integers, or such as PyTorch's tracer records."""
    # By a loop: on the way of an eager call, a generator costs more than what it compares.
    for size in sizes:  # noqa: SIM110
        if not isinstance(size, _KNOWN):
            return False
    return True


def symbolic(*sizes):
    """Whether a size is a symbolic dimension of JAX, which cannot be cut into blocks."""
    return any(map(backend.is_symbolic_size, sizes))


def least(first, second):
    """The smaller of two sizes."""
    return min(first, second) if known(first, second) else backend.least_size(first, second)


def most(first, second):
    """The larger of two sizes."""
    return max(first, second) if known(first, second) else backend.most_size(first, second)


def same(first, second):
    """Whether two sizes are known to be equal wherever a program runs."""
    if known(first, second):
        return first == second
    # An index may be an array, whose comparison is not a boolean.
    exact = (known(first) or symbolic(first)) and (known(second) or symbolic(second))
    return first is second or (exact and bool(first == second))


def multiple(length, size):
    """Whether a length is known to be a multiple of a size."""
    return length % size == 0 if known(length, size) else same(length, size)


def blocks(length, size):
    """The number of blocks of at most `size` in a length, and their length, as even as possible."""
    if known(length, size):
        for count in range(max(1, -(-length // size)), 2 * -(-length // size)):
            if length % count == 0:
                return count, length // count
    if same(length, size):
        return 1, length
    # Lengths unknown in a graph may be 0.
    size = most(1, size)
    count = most(1, -(-length // size))
    return count, most(1, -(-length // count))
