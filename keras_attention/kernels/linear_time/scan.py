"""The states of a linear recurrence over chunks, with a gradient that is a recurrence too.

    S_{n+1} = F_n S_n + U_n

Only this is sequential in the kernels of `recurrence` and `delta`: all else is of all chunks.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences.sizes import known


def states(factors, updates, start, matrices=False):
    """The states before each chunk, (N, B, G, K, V), and the last, (B, G, K, V).

    Args:
        factors: F, (N, B, G, K or 1, 1), elements that multiply; matrices (N, B, G, K, K); or None.
        updates: U, (N, B, G, K, V).
        start: S_0, (B, G, K, V).
        matrices: whether factors are matrices.
    """
    count = backend.shape(updates)[0]
    if known(count) and count == 1:
        factor = None if factors is None else factors[0]
        return start[None], _times(factor, start, matrices) + updates[0]
    arrays = [updates, start] if factors is None else [updates, start, factors]
    return _scan(arrays, matrices, reverse=False)


def largest_so_far(arrays, start):
    """The elementwise maximum of `start` and the arrays before each, (N, …), without a gradient."""
    arrays, start = ops.stop_gradient(arrays), ops.stop_gradient(start)
    count = backend.shape(arrays)[0]
    if known(count) and count == 1:
        return start[None]
    before, _ = _loop(count, start, lambda n, largest: backend.maximum(largest, arrays[n]))
    return ops.stop_gradient(before)


def _loop(count, state, step, reverse=False):
    """The states before each `state = step(n, state)`, (N, …), and the last."""

    def one(i, carry):
        state, before = carry
        n = count - 1 - i if reverse else i
        before = backend.write_buffer(before, n, state)
        return step(n, state), before

    dtype = keras.backend.standardize_dtype(state.dtype)
    buffer = backend.make_buffer(count, backend.shape(state), dtype, zeros=False)
    last, before = backend.fori_loop(0, count, one, (state, buffer))
    return backend.stack_buffer(before), last


def _times(factor, state, matrices, transposed=False):
    if factor is None:
        return state
    if matrices:
        return backend.matmul(factor, state, transpose_first=transposed)
    return factor * state


def _scan(arrays, matrices, reverse):
    """`states`, whose order and matrices are the other way around with `reverse`."""

    def make(constants):
        def forward(updates, start, factors=None):
            def step(n, state):
                factor = None if factors is None else factors[n]
                return _times(factor, state, matrices, reverse) + updates[n]

            return _loop(backend.shape(updates)[0], start, step, reverse), ()

        def backward(arrays, outputs, saved, upstream):
            _, _, *factors = arrays
            of_updates, of_start = _scan([*upstream, *factors], matrices, not reverse)
            found = [of_updates, of_start]
            if factors and matrices:
                pair = (outputs[0], of_updates) if reverse else (of_updates, outputs[0])
                found.append(backend.matmul(*pair, transpose_second=True))
            elif factors:
                products = ops.sum(of_updates * outputs[0], axis=-1, keepdims=True)
                if factors[0].shape[-2] == 1:
                    products = ops.sum(products, axis=-2, keepdims=True)
                found.append(products)
            return tuple(found)

        return forward, backward

    return backend.custom_vjp(make, arrays, saves=False)
