"""Sequences cut into chunks, chunks first, for kernels that carry a state from one to the next."""

from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences.sizes import known


class Chunks:
    """Sequences cut into N chunks of C tokens, with zeros at the end.

    Args:
        query, key: (B, T, H, K), (B, T, G, K).
        size: the most tokens of a chunk.
    """

    def __init__(self, query, key, size):
        self.batch, self.length = backend.shape(query)[:2]
        self.heads, self.groups = query.shape[2], key.shape[2]
        self.size = size
        if known(self.length):
            self.size = max(1, min(size, self.length))
        # At least one chunk, of no token.
        count = (self.length + self.size - 1) // self.size
        self.count = max(1, count) if known(count) else backend.most_size(count, 1)
        self.alone = known(self.count) and self.count == 1

    def of_keys(self, array):
        """(N, B, G, C, K) of (B, T, G, K)."""
        missing = self.count * self.size - self.length
        if not (known(missing) and missing == 0):
            array = ops.pad(array, [(0, 0), (0, missing), (0, 0), (0, 0)])
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

    def causal(self):
        """Which pairs (C, C) have the key no later than the query."""
        at = ops.arange(self.size, dtype="int32")
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
