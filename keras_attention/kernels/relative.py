"""Learned embeddings of clipped distances (Shaw et al. 2018), without a table of all pairs.

`table` is (H or 1, 2k + 1, K): row `clip(j − i, −k, k) + k` belongs to a query at position i and a
key at position j. A table of all pairs would be (T, S, K). If positions are consecutive, as they
nearly always are, distances repeat along diagonals: T + S − 1 rows cover all pairs, one product
gives (T, T + S − 1), and a reshape shifts each row into position. Other positions, and all where a
length is a symbolic dimension, are looked up pair by pair, in (2k + 1) products per query.
"""

from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences import sizes
from keras_attention.spec import padded


def scores(query, table, length, positions, near=False):
    """The term that distances add to the scores: (B, H, T, S), of query (B, H, T, K).

    Args:
        table: (H or 1, 2k + 1, K).
        length: S.
        positions: the `Positions` of queries and keys.
        near: whether only pairs at a distance below k matter.
    """
    if _nothing(query.shape[2], length):
        return ops.zeros((*ops.shape(query)[:3], length), query.dtype)
    diagonals = _diagonals(ops.shape(query)[2], length, table, positions, near)
    if diagonals is not None:
        embeddings, *shift = diagonals
        return _to_pairs(_inner(query, embeddings), length, *shift)
    products = _inner(query, table)
    # By a sum: XLA cannot compile TensorFlow's gradient of a broadcast inside a loop.
    buckets = _buckets(table, positions) + ops.cast(ops.zeros_like(products[..., :1]), "int32")
    return backend.take_last(products, buckets)


def values(weights, table, positions, near=False):
    """The term that distances add to the output: (B, H, T, V), of weights (B, H, T, S).

    `table` is (H or 1, 2k + 1, V). With `near`, weights at a distance of k or more are 0.
    """
    batch, heads, queries, keys = ops.shape(weights)
    if _nothing(queries, keys):
        return ops.zeros((batch, heads, queries, table.shape[-1]), weights.dtype)
    diagonals = _diagonals(queries, keys, table, positions, near)
    if diagonals is not None:
        embeddings, *shift = diagonals
        return _matrices(_to_distances(weights, ops.shape(embeddings)[1], *shift), embeddings)
    buckets = ops.broadcast_to(_buckets(table, positions), (batch, heads, queries, keys))
    return _matrices(backend.bucket_sums(weights, buckets, table.shape[1]), table)


def _nothing(*lengths):
    """Whether a length is known to be 0, so that there are no distances."""
    return any(sizes.known(length) and length == 0 for length in lengths)


def _diagonals(queries, keys, table, positions, near):
    """Embeddings (H or 1, R, K) of distances along diagonals, and (start, width, skip), or None.

    Query t meets the first of the R distances at key `start` + t − `skip`, in a row of `width`.
    """
    offset, largest = positions.offset, table.shape[1] // 2
    if not positions.consecutive or sizes.symbolic(queries, keys):
        return None
    if near and sizes.known(queries, keys, offset):
        start = offset - (largest - 1)
        # If all near keys exist, the others need no embeddings.
        if start >= 0 and queries - 1 + start + table.shape[1] - 2 <= keys:
            return table[:, 1:-1], start, keys, 0
    # T + S − 1; where lengths unknown in a graph are 0, a row, and as many as keys.
    count = sizes.most(sizes.most(queries + keys - 1, keys), 1)
    distance = ops.arange(count, dtype="int32") - (queries - 1) - offset
    embeddings = backend.take(table, _clip(distance, table), axis=1)
    return embeddings, 0, count, sizes.most(queries - 1, 0)


def _to_pairs(by_distance, keys, start, width, skip):
    """(B, H, T, R), by distance, to (B, H, T, S), by key, with zeros elsewhere."""
    batch, heads, queries, distances = ops.shape(by_distance)
    # One extra column makes each row of the flat array start one position later.
    wide = padded(by_distance, 3, start, width + 1 - start - distances)
    flat = ops.reshape(wide, (batch, heads, queries * (width + 1)))
    flat = backend.dynamic_slice(flat, 2, skip, queries * width)
    return backend.dynamic_slice(ops.reshape(flat, (batch, heads, queries, width)), 3, 0, keys)


def _to_distances(by_key, distances, start, width, skip):
    """The inverse: (B, H, T, S) to (B, H, T, R), with zeros where there is no key."""
    batch, heads, queries, keys = ops.shape(by_key)
    flat = ops.reshape(padded(by_key, 3, 0, width - keys), (batch, heads, queries * width))
    flat = padded(flat, 2, skip, queries - skip)
    shifted = ops.reshape(flat, (batch, heads, queries, width + 1))
    return backend.dynamic_slice(shifted, 3, start, distances)


def _inner(query, embeddings):
    """(B, H, T, R) of query (B, H, T, K) and embeddings (H or 1, R, K)."""
    return _matrices(query, ops.swapaxes(embeddings, 1, 2))


def _matrices(array, matrices):
    """(B, H, T, N) of (B, H, T, M) and (H or 1, M, N)."""
    if matrices.shape[0] != 1:
        return backend.matmul(array, matrices)
    if backend.may_share_arrays():
        # Devices that share the heads would gather them to make one matrix.
        return backend.matmul(array, matrices[0])
    # As one matrix: TensorFlow would compute a product for each sequence and head.
    shape = ops.shape(array)
    found = backend.matmul(ops.reshape(array, (-1, shape[-1])), matrices[0])
    return ops.reshape(found, (*shape[:-1], ops.shape(matrices)[-1]))


def _clip(distance, table):
    """The row of `table` for each distance."""
    largest = table.shape[1] // 2
    return ops.clip(distance, -largest, largest) + largest


def _buckets(table, positions):
    """The row for each pair, (1, 1, T, S) or (B, 1, T, S)."""
    distance = ops.expand_dims(positions.key, -2) - ops.expand_dims(positions.query, -1)
    distance = distance[:, None] if len(distance.shape) == 3 else distance[None, None]
    return _clip(distance, table)


def by_distance(function, queries, keys, offset):
    """A function of the distance only, for each pair of consecutive positions.

    `function` takes positions (1, 1) and (1, N) and gives (H, 1, N), or what broadcasts to it.
    Queries are at `offset`, `offset` + 1, …, keys at 0, 1, …: (1, H, T, S) of T + S − 1 distances.
    """
    # Lengths unknown in a graph may be 0.
    rows, columns = sizes.most(1, queries), sizes.most(1, keys)
    distance = ops.arange(rows + columns - 1, dtype="int32") - (rows - 1) - offset
    found = function(ops.zeros((1, 1), "int32"), distance[None])
    found = backend.windows(ops.reshape(found, (-1, rows + columns - 1)), rows, columns)[None]
    if sizes.known(queries, keys) and 0 not in (queries, keys):
        return found
    return found[:, :, :queries, :keys]
