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
    start = _band(query.shape[2], length, table, positions) if near else None
    if start is not None:
        return _into_band(_inner(query, table[:, 1:-1]), start, length)
    if positions.consecutive and not sizes.symbolic(query.shape[2], length):
        embeddings = _embeddings(table, ops.shape(query)[2], length, positions.offset)
        return _to_pairs(_inner(query, embeddings), length)
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
    start = _band(queries, keys, table, positions) if near else None
    if start is not None:
        return _matrices(_out_of_band(weights, start, table.shape[1] - 2), table[:, 1:-1])
    if positions.consecutive and not sizes.symbolic(queries, keys):
        embeddings = _embeddings(table, queries, keys, positions.offset)
        return _matrices(_to_distances(weights), embeddings)
    buckets = ops.broadcast_to(_buckets(table, positions), (batch, heads, queries, keys))
    return _matrices(backend.bucket_sums(weights, buckets, table.shape[1]), table)


def _nothing(*lengths):
    """Whether a length is known to be 0, so that there are no distances."""
    return any(sizes.known(length) and length == 0 for length in lengths)


def _band(queries, keys, table, positions):
    """The first key at a distance above −k of the first query, if all near keys exist."""
    if not (positions.consecutive and sizes.known(queries, keys, positions.offset)):
        return None
    start = positions.offset - (table.shape[1] // 2 - 1)
    inside = start >= 0 and queries - 1 + start + table.shape[1] - 2 <= keys
    return start if inside else None


def _into_band(by_distance, start, keys):
    """(B, H, T, R), by distance, to (B, H, T, S), by key, zeros elsewhere: row t at start + t."""
    batch, heads, queries, distances = ops.shape(by_distance)
    # One extra column makes each row start one position later than the one before.
    widths = [(0, 0)] * 3 + [(start, keys + 1 - start - distances)]
    flat = ops.reshape(ops.pad(by_distance, widths), (batch, heads, queries * (keys + 1)))
    flat = backend.dynamic_slice(flat, 2, 0, queries * keys)
    return ops.reshape(flat, (batch, heads, queries, keys))


def _out_of_band(by_key, start, distances):
    """The inverse, without the zeros."""
    batch, heads, queries, keys = ops.shape(by_key)
    flat = ops.pad(
        ops.reshape(by_key, (batch, heads, queries * keys)), [(0, 0), (0, 0), (0, queries)]
    )
    shifted = ops.reshape(flat, (batch, heads, queries, keys + 1))
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


def _embeddings(table, queries, keys, offset):
    """Those of the distances −(T − 1) − offset … S − 1 − offset: (H or 1, T + S − 1, K)."""
    distance = ops.arange(_count(queries, keys), dtype="int32") - (queries - 1) - offset
    return backend.take(table, _clip(distance, table), axis=1)


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


def _count(queries, keys):
    """T + S − 1; where lengths unknown in a graph are 0, a row, and as many as keys."""
    return sizes.most(sizes.most(queries + keys - 1, keys), 1)


def _to_pairs(by_distance, keys):
    """(B, H, T, T + S − 1), by distance, to (B, H, T, S), by key: row t starts at T − 1 − t."""
    batch, heads, queries, distances = ops.shape(by_distance)
    # One extra column makes each row of the flat array start one position later.
    padded = ops.concatenate([by_distance, ops.zeros_like(by_distance[..., :1])], axis=-1)
    flat = ops.reshape(padded, (batch, heads, queries * (distances + 1)))
    flat = backend.dynamic_slice(flat, 2, sizes.most(queries - 1, 0), queries * distances)
    return backend.dynamic_slice(ops.reshape(flat, (batch, heads, queries, distances)), 3, 0, keys)


def _to_distances(by_key):
    """The inverse: (B, H, T, S) to (B, H, T, T + S − 1), with zeros where there is no key."""
    batch, heads, queries, keys = ops.shape(by_key)
    distances = _count(queries, keys)
    after = ops.zeros((batch, heads, queries, distances - keys), by_key.dtype)
    flat = ops.reshape(
        ops.concatenate([by_key, after], axis=-1), (batch, heads, queries * distances)
    )
    before = ops.zeros((batch, heads, sizes.most(queries - 1, 0)), by_key.dtype)
    last = ops.zeros((batch, heads, sizes.least(queries, 1)), by_key.dtype)
    flat = ops.concatenate([before, flat, last], axis=-1)
    shifted = ops.reshape(flat, (batch, heads, queries, distances + 1))
    return backend.dynamic_slice(shifted, 3, 0, distances)
