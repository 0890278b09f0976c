"""Sequences cut into chunks, chunks first, and states that are carried from one to the next.

    S_{n+1} = F_n S_n + U_n

This recurrence, whose gradient is one too, is all that is sequential in `recurrence` and `delta`.
"""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences.sizes import known, most
from keras_attention.spec import padded


class Chunks:
    """Sequences cut into N chunks of C tokens, with zeros at the end.

    Args:
        query, key: (B, T, H, K), (B, T, G, K).
        size: the most tokens of a chunk.
        halved: whether it is a power of 2, and may exceed the length.
    """

    def __init__(self, query, key, size, halved=False):
        self.batch, self.length = backend.shape(query)[:2]
        self.heads, self.groups = query.shape[2], key.shape[2]
        self.size = size
        if known(self.length):
            self.size = max(1, min(size, self.length))
        if halved:
            self.size = 1 << (self.size - 1).bit_length()
        # At least one chunk, of no token.
        self.count = most((self.length + self.size - 1) // self.size, 1)
        self.alone = known(self.count) and self.count == 1

    def of_keys(self, array):
        """(N, B, G, C, K) of (B, T, G, K)."""
        missing = self.count * self.size - self.length
        array = padded(array, 1, 0, missing)
        shape = (self.batch, self.count, self.size, *array.shape[2:])
        return ops.transpose(ops.reshape(array, shape), (1, 0, 3, 2, 4))

    def of_queries(self, array):
        """(N, B, G, R, C, K) of (B, T, H, K), for R queries of a key head."""
        repeats = self.heads // self.groups
        shape = (self.count, self.batch, self.groups, repeats, self.size, array.shape[-1])
        return ops.reshape(self.of_keys(array), shape)

    def sums(self, decay):
        """Sums (N, B, G, C, K) up to each token of a chunk, of (B, T, G, K), or of (1, 1, G, 1)."""
        if decay.shape[1] == 1:
            # Without a sum of constants, which XLA would compute for seconds.
            first = self.size * ops.arange(self.count, dtype="int32")[:, None]
            count = ops.minimum(ops.arange(1, self.size + 1, dtype="int32"), self.length - first)
            found = ops.cast(ops.expand_dims(count, (1, 2, 4)), decay.dtype)
            found = found * ops.transpose(decay, (0, 2, 1, 3))
            # TensorFlow broadcasts fewer axes than those of queries.
            shape = (self.count, self.batch, self.groups, self.size, decay.shape[-1])
            return ops.broadcast_to(found, shape)
        decay = self.of_keys(decay)
        if decay.shape[-1] == 1:
            return backend.cumsum(decay[..., 0])[..., None]
        return ops.swapaxes(backend.cumsum(ops.swapaxes(decay, -1, -2)), -1, -2)

    def causal(self, size=None):
        """Which pairs (C, C), or of so many tokens, have the key no later than the query."""
        at = ops.arange(size or self.size, dtype="int32")
        return at[:, None] >= at[None]

    def products(self, query, key):
        """The inner products (N, B, G, R, C, C) of queries and keys."""
        return self.combine(query, key, transpose_second=True)

    def combine(self, rows, arrays, **transposed):
        """(N, B, G, R, C, V) of rows (N, B, G, R, C, K) and arrays (N, B, G, K, V)."""
        count, batch, groups, repeats, size, features = backend.shape(rows)
        rows = ops.reshape(rows, (count, batch, groups, repeats * size, features))
        found = backend.matmul(rows, arrays, **transposed)
        return ops.reshape(found, (count, batch, groups, repeats, size, found.shape[-1]))

    def together(self, array):
        """(B, T, H, V) of (N, B, G, R, C, V)."""
        whole = (self.batch, self.count * self.size, self.heads, array.shape[-1])
        return ops.reshape(ops.transpose(array, (1, 0, 4, 2, 3, 5)), whole)[:, : self.length]


def states(factors, updates, start):
    """The states before each chunk, (N, B, G, K, V), and the last, (B, G, K, V).

    Args:
        factors: F, (N, B, G, K or 1, 1), elements that multiply; matrices (N, B, G, K, K); or None.
        updates: U, (N, B, G, K, V).
        start: S_0, (B, G, K, V).
    """
    count = backend.shape(updates)[0]
    if known(count) and count == 1:
        factor = None if factors is None else factors[0]
        return start[None], _times(factor, start) + updates[0]
    return _scan([updates, start] if factors is None else [updates, start, factors])


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


def _times(factor, state, transposed=False):
    if factor is None:
        return state
    if factor.shape[-1] == 1:
        return factor * state
    return backend.matmul(factor, state, transpose_first=transposed)


def _scan(arrays, reverse=False):
    """`states`, whose order and matrices are the other way around with `reverse`."""

    def make(constants):
        def forward(updates, start, factors=None):
            def step(n, state):
                factor = None if factors is None else factors[n]
                return _times(factor, state, reverse) + updates[n]

            return _loop(backend.shape(updates)[0], start, step, reverse), ()

        def backward(arrays, outputs, saved, upstream):
            _, _, *factors = arrays
            of_updates, of_start = _scan([*upstream, *factors], not reverse)
            if not factors:
                return of_updates, of_start
            if factors[0].shape[-1] != 1:
                pair = (outputs[0], of_updates) if reverse else (of_updates, outputs[0])
                return of_updates, of_start, backend.matmul(*pair, transpose_second=True)
            products = ops.sum(of_updates * outputs[0], axis=-1, keepdims=True)
            if factors[0].shape[-2] == 1:
                products = ops.sum(products, axis=-2, keepdims=True)
            return of_updates, of_start, products

        return forward, backward

    return backend.custom_vjp(make, arrays, saves=False)
