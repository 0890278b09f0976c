"""Splits a problem into tiles, and assembles the results of tiles.

    whole   query (B, G, R, T', K)    key (B, G, S', K)    scores (B, H, T', S'), H = G · R
    tile    query (b, g, r·t, K)      key (b, g, s, K)     scores (b, g, r·t, s), or (b, h, t, s)

R is the number of query heads that share a key head. T' and S' are T and S, padded to multiples of
a tile's t and s. A tile has all R heads of a key head: r = R.
"""

import copy
import dataclasses
import typing

import keras

from keras_attention.backend import backend
from keras_attention.kernels.sizes import blocks, known, least, most
from keras_attention.spec import Positions

ops = keras.ops


@dataclasses.dataclass(frozen=True)
class Plan:
    """The sizes of a tile, and the number of tiles along each axis.

    A tile has `batch` sequences, `groups` of their key heads (and the `repeats` query heads of
    each), `queries` and `keys`. There are `batches` · `groupings` · `query_blocks` · `key_blocks`.
    """

    batch: object
    groups: int
    repeats: int
    queries: object
    keys: object
    batches: object
    groupings: int
    query_blocks: object
    key_blocks: object

    @property
    def heads(self):
        """Query heads of a tile."""
        return self.groups * self.repeats

    @property
    def chunks(self):
        """The number of chunks of sequences and heads."""
        return self.batches * self.groupings

    @property
    def single(self):
        """Whether there is known to be one tile."""
        return all(
            isinstance(count, int) and count == 1
            for count in (self.batches, self.groupings, self.query_blocks, self.key_blocks)
        )


def plan(batch, heads, groups, queries, keys, elements, all_heads=False, skips=False):
    """A `Plan` for arrays of these sizes, with about `elements` scores in a tile.

    `all_heads` puts all heads in each tile. `skips` means that tiles may be skipped, which
    requires several.
    """
    repeats = heads // groups
    pairs = queries * keys if known(queries, keys) else None
    if known(pairs):
        # A quarter, with a tile per head, is as fast and fits the cache under XLA.
        some = groups if all_heads else _divisor(groups, elements // 4 // max(1, repeats * pairs))
        if some < groups:
            few = 1
        elif known(batch):
            few = _divisor(batch, elements // max(1, heads * pairs))
        else:
            few = batch if heads * pairs <= elements // 16 else 1
    else:
        # The whole batch at once if it is small. By quotients: the product of all sizes may
        # overflow the graph's 32-bit integers.
        some = groups
        room = 4 * elements // heads // most(1, batch) // most(1, keys)
        few = ops.where(queries <= room, batch, 1)
    together = some * repeats
    if known(pairs) and pairs * together <= elements:
        rows, columns = queries, keys
    else:
        # Many queries to few keys: matrix products are fastest so.
        columns = 1024 if together <= 2 else 512
        rows = least(queries, max(16, elements // (together * columns)))
        if known(rows):
            columns = max(columns, elements // (together * rows))
        columns = least(keys, columns)
    if skips and known(pairs) and pairs >= 2**20:
        # Smaller, so that more of them are skipped, but then with more heads.
        rows, columns = (
            min(size, max(512, length // 4)) for size, length in ((rows, queries), (columns, keys))
        )
        if not all_heads:
            some = _divisor(groups, elements // max(1, repeats * rows * columns))
    query_blocks, rows = blocks(queries, rows)
    key_blocks, columns = blocks(keys, columns)
    batches = 1 if few is batch else most(1, batch) // most(1, few)
    return Plan(
        few, some, repeats, rows, columns, batches, groups // some, query_blocks, key_blocks
    )


def _divisor(number, most):
    """The largest divisor of `number` that is at most `most`, or 1."""
    return max((n for n in range(1, min(number, most) + 1) if number % n == 0), default=1)


class Tile(typing.NamedTuple):
    """Which tile: the chunk of sequences and heads, the block of queries, the block of keys."""

    chunk: object
    row: object
    column: object


class Tiling:
    """A problem in tiles: cuts its arrays, and derives the spec of a tile."""

    def __init__(self, spec, plan, batch, queries, keys):
        self.spec, self.plan = spec, plan
        self.batch, self.queries, self.keys = batch, queries, keys
        self.pads_keys = not (known(keys, plan.keys) and keys % plan.keys == 0)
        # Whether a row of scores may have masked ones.
        self.restricted = spec.restricted or self.pads_keys
        offset = spec.positions.offset
        # All arrays but those that have a gradient; see `custom_vjp`.
        self.constants = {
            "query_positions": self._pad(spec.positions.query, -1, queries, plan.queries),
            "key_positions": self._pad(spec.positions.key, -1, keys, plan.keys),
            "offset": None if isinstance(offset, int) else offset,
            "masks": [self.fit(mask) for mask in spec.masks],
            "segment_ids": spec.segment_ids
            and (
                self._pad(spec.segment_ids[0], 1, queries, plan.queries),
                self._pad(spec.segment_ids[1], 1, keys, plan.keys),
            ),
            "dropout_key": backend.dropout_key(spec.seed) if spec.dropout else None,
        }

    def with_constants(self, constants):
        """The same with other arrays as `constants`."""
        same = copy.copy(self)
        same.constants = constants
        return same

    # Whole arrays

    def rows_of(self, query):
        """Query (B, T, H, K) as (B, G, R, T', K)."""
        query = self._pad(query, 1, self.queries, self.plan.queries)
        query = ops.transpose(query, (0, 2, 1, 3))
        batch, heads, length, size = backend.shape(query)
        repeats = self.plan.repeats
        return ops.reshape(query, (batch, heads // repeats, repeats, length, size))

    def columns_of(self, key):
        """Key or value (B, S, G, K) as (B, G, S', K)."""
        key = self._pad(key, 1, self.keys, self.plan.keys)
        if key.shape[2] == 1:
            return ops.reshape(key, (*backend.shape(key)[:1], 1, -1, key.shape[3]))
        return ops.transpose(key, (0, 2, 1, 3))

    def from_rows(self, rows):
        """(B, T, H, n) of (B, G, R, T', n)."""
        plan = self.plan
        length = plan.query_blocks * plan.queries
        # Sizes that are known, not those of `rows`: ONNX's converter gets them wrong after a loop.
        sizes = self.batch, plan.groupings * plan.heads, length, rows.shape[-1]
        rows = ops.reshape(rows, sizes)
        if not (known(length, self.queries) and length == self.queries):
            rows = rows[:, :, : self.queries]
        return ops.transpose(rows, (0, 2, 1, 3))

    def fit(self, array):
        """An array that broadcasts to (B, H, T, S), padded, each axis known to be 1 or whole."""
        if None in array.shape:
            heads = self.plan.groupings * self.plan.heads
            whole = (self.batch, heads, self.queries, self.keys)
            sizes = zip(array.shape, whole, strict=True)
            array = ops.broadcast_to(array, [full if n is None else n for n, full in sizes])
        for axis, length, size in (
            (2, self.queries, self.plan.queries),
            (3, self.keys, self.plan.keys),
        ):
            if array.shape[axis] != 1:
                array = self._pad(array, axis, length, size)
        return array

    def _pad(self, array, axis, length, size):
        """`array` with zeros after its end along an axis, up to a multiple of `size`, not 0."""
        if known(length, size) and length % size == 0:
            return array
        axis = axis % len(array.shape)
        widths = [(0, 0)] * len(array.shape)
        widths[axis] = (0, most(size, -(-length // size) * size) - length)
        return ops.pad(array, widths)

    # Cutting

    def _chunk(self, chunk):
        """The first sequence and the first group of key heads of a chunk."""
        return (
            chunk // self.plan.groupings * self.plan.batch,
            chunk % self.plan.groupings * self.plan.groups,
        )

    def cut_rows(self, rows, tile):
        """A tile's (b, g, r·t, n) of (B, G, R, T', n)."""
        plan = self.plan
        first, group = self._chunk(tile.chunk)
        rows = backend.dynamic_slice(rows, 0, first, plan.batch)
        rows = backend.dynamic_slice(rows, 1, group, plan.groups)
        rows = backend.dynamic_slice(rows, 3, tile.row * plan.queries, plan.queries)
        return ops.reshape(
            rows, (plan.batch, plan.groups, plan.repeats * plan.queries, rows.shape[-1])
        )

    def cut_columns(self, columns, tile):
        """A tile's (b, g, s, n) of (B, G, S', n)."""
        plan = self.plan
        first, group = self._chunk(tile.chunk)
        columns = backend.dynamic_slice(columns, 0, first, plan.batch)
        columns = backend.dynamic_slice(columns, 1, group, plan.groups)
        return backend.dynamic_slice(columns, 2, tile.column * plan.keys, plan.keys)

    def cut_pairs(self, array, tile):
        """A tile's part of an array that broadcasts to (B, H, T', S'); axes of 1 stay 1."""
        plan = self.plan
        first, group = self._chunk(tile.chunk)
        cuts = (
            (first, plan.batch),
            (group * plan.repeats, plan.heads),
            (tile.row * plan.queries, plan.queries),
            (tile.column * plan.keys, plan.keys),
        )
        for axis, (start, size) in enumerate(cuts):
            if array.shape[axis] != 1:
                array = backend.dynamic_slice(array, axis, start, size)
        return array

    def _cut_integers(self, array, tile, block, size):
        """A tile's block of integers (T',) or (B, T')."""
        if len(array.shape) == 2 and array.shape[0] != 1:
            array = backend.dynamic_slice(array, 0, self._chunk(tile.chunk)[0], self.plan.batch)
        return backend.dynamic_slice(array, len(array.shape) - 1, block * size, size)

    def by_heads(self, array):
        """(b, g, r·t, n) as (b, h, t, n)."""
        plan = self.plan
        return ops.reshape(array, (plan.batch, plan.heads, plan.queries, backend.shape(array)[-1]))

    def by_groups(self, array):
        """(b, h, t, n) as (b, g, r·t, n)."""
        plan = self.plan
        size = backend.shape(array)[-1]
        return ops.reshape(array, (plan.batch, plan.groups, plan.repeats * plan.queries, size))

    # The spec of a tile

    def cut_arrays(self, arrays, tile):
        """`AttentionSpec.arrays` with the biases cut; the others are whole in every tile."""
        biases = tuple(self.cut_pairs(bias, tile) for bias in arrays["biases"])
        return {**arrays, "biases": biases}

    def cut_spec(self, arrays, tile):
        """The spec of a tile, whose arrays are the result of `cut_arrays`."""
        plan, constants = self.plan, self.constants
        tables = {
            name: self._table(arrays[name], tile)
            for name in ("relative_keys", "relative_values")
            if name in arrays
        }
        kept = [self.cut_pairs(mask, tile) for mask in constants["masks"]]
        if self.pads_keys:
            column = tile.column * plan.keys + ops.arange(plan.keys, dtype="int32")
            kept.append((column < self.keys)[None, None, None])
        segment_ids = constants["segment_ids"]
        if segment_ids is not None:
            queries, keys = segment_ids
            segment_ids = (
                self._cut_integers(queries, tile, tile.row, plan.queries),
                self._cut_integers(keys, tile, tile.column, plan.keys),
            )
        return self.spec.with_arrays({**arrays, **tables}).replace(
            masks=tuple(kept), segment_ids=segment_ids, positions=self._positions(tile)
        )

    def _table(self, table, tile):
        """The rows of a tile's query heads, of an array (H or 1, …)."""
        if table.shape[0] == 1:
            return table
        group = self._chunk(tile.chunk)[1]
        return backend.dynamic_slice(table, 0, group * self.plan.repeats, self.plan.heads)

    def _positions(self, tile):
        """The `Positions` of a tile, whose keys count from 0 if they are consecutive."""
        plan, constants = self.plan, self.constants
        consecutive, offset = self.spec.positions.consecutive, 0
        if consecutive:
            offset = self._start() + tile.row * plan.queries - tile.column * plan.keys
        return Positions(
            self._cut_integers(constants["query_positions"], tile, tile.row, plan.queries),
            self._cut_integers(constants["key_positions"], tile, tile.column, plan.keys),
            consecutive,
            offset,
        )

    def _start(self):
        """The position of the first query, if positions are consecutive."""
        offset = self.constants["offset"]
        return self.spec.positions.offset if offset is None else offset

    def dropout_mask(self, shape, tile):
        """Which weights of a tile dropout keeps: deterministic for a tile."""
        plan = self.plan
        index = (tile.chunk * plan.query_blocks + tile.row) * plan.key_blocks + tile.column
        return backend.dropout_mask(self.constants["dropout_key"], index, shape, self.spec.dropout)

    # Loops over tiles

    def over_columns(self, row, body, first, zeros):
        """`carry = body(j, carry)` for the blocks of keys that queries of a block may see.

        It starts from `first` if there is known to be one, otherwise from `zeros()`.
        """
        if known(self.plan.key_blocks) and self.plan.key_blocks == 1:
            return body(0, first)
        return backend.fori_loop(*self._reach(row), body, zeros())

    def _reach(self, row):
        """The first block of keys that queries of a block can see, and the one after the last."""
        span, plan = span_of(self.spec), self.plan
        if span is None or not self.spec.positions.consecutive:
            return 0, plan.key_blocks
        start = self._start() + row * plan.queries
        first, last = 0, plan.key_blocks
        if span.left is not None:
            first = most(0, (start - span.left) // plan.keys)
        if span.right is not None:
            last = least(last, most(0, (start + plan.queries - 1 + span.right) // plan.keys + 1))
        return first, last

    def over_rows(self, body, sizes, dtype, carry=()):
        """The results of `body(chunk, row, carry)` for each block of queries, assembled.

        `body` returns arrays (b, g, r·t, n), for each n of `sizes`, and the next carry. This
        returns arrays (B, G, R, T', n), and the last carry.
        """
        plan = self.plan
        if plan.single:
            found, carry = body(0, 0, carry)
            shape = (plan.batch, plan.groups, plan.repeats, plan.queries)
            return [ops.reshape(x, (*shape, n)) for x, n in zip(found, sizes, strict=True)], carry

        def step(n, state):
            buffers, carry = state
            one = known(plan.query_blocks) and plan.query_blocks == 1
            chunk, row = (n, 0) if one else (n // plan.query_blocks, n % plan.query_blocks)
            found, carry = body(chunk, row, carry)
            written = (backend.write_buffer(b, n, x) for b, x in zip(buffers, found, strict=True))
            return tuple(written), carry

        count = plan.chunks * plan.query_blocks
        tile = (plan.batch, plan.groups, plan.repeats * plan.queries)
        buffers = tuple(backend.make_buffer(count, (*tile, n), dtype, zeros=False) for n in sizes)
        buffers, carry = backend.fori_loop(0, count, step, (buffers, carry))
        return [self._rows_together(b, n) for b, n in zip(buffers, sizes, strict=True)], carry

    def _rows_together(self, buffer, size):
        """(B, G, R, T', n) of tiles (b, g, r·t, n)."""
        plan = self.plan
        return _interleave(
            backend.stack_buffer(buffer),
            (plan.batches, plan.groupings, 1, plan.query_blocks, 1),
            (plan.batch, plan.groups, plan.repeats, plan.queries, size),
        )

    def add_columns(self, buffer, tile, array):
        """A buffer of tiles (b, g, n, s) with an array added to one."""
        return _add(buffer, tile.chunk * self.plan.key_blocks + tile.column, array)

    def columns_buffer(self, size, dtype):
        """Zeros for `add_columns`: a tile (b, g, n, s) for each block of keys."""
        plan = self.plan
        shape = (plan.batch, plan.groups, size, plan.keys)
        return backend.make_buffer(plan.chunks * plan.key_blocks, shape, dtype)

    def columns_together(self, buffer, size):
        """(B, G, S', n) of tiles (b, g, n, s)."""
        plan = self.plan
        if plan.single:
            return ops.swapaxes(buffer, -1, -2)
        found = _interleave(
            backend.stack_buffer(buffer),
            (plan.batches, plan.groupings, 1, plan.key_blocks),
            (plan.batch, plan.groups, size, plan.keys),
        )
        return ops.swapaxes(found, -1, -2)

    def _pairs_counts(self, array):
        """The number of blocks of an array of pairs along each axis: 1 if the axis is 1."""
        plan = self.plan
        counts = (plan.batches, plan.groupings, plan.query_blocks, plan.key_blocks)
        return [1 if n == 1 else count for n, count in zip(array.shape, counts, strict=True)]

    def add_pairs(self, buffer, tile, array, like):
        """A buffer of blocks of arrays of pairs, such as `like`, with an array added to one."""
        groupings = self.plan.groupings
        at = (tile.chunk // groupings, tile.chunk % groupings, tile.row, tile.column)
        index = 0
        for size, count, coordinate in zip(like.shape, self._pairs_counts(like), at, strict=True):
            index = index if size == 1 else index * count + coordinate
        return _add(buffer, index, array)

    def pairs_buffer(self, like, dtype):
        """Zeros for `add_pairs`."""
        plan, count = self.plan, 1
        for n in self._pairs_counts(like):
            count = count * n
        sizes = (plan.batch, plan.heads, plan.queries, plan.keys)
        block = [1 if n == 1 else size for n, size in zip(like.shape, sizes, strict=True)]
        return backend.make_buffer(count, block, dtype)

    def pairs_together(self, buffer, like):
        """An array of the shape of `like` from its blocks."""
        tiles = backend.stack_buffer(buffer)
        return ops.reshape(
            _interleave(tiles, self._pairs_counts(like), backend.shape(tiles)[1:]),
            backend.shape(like),
        )


def _interleave(tiles, counts, sizes):
    """An array of axes counts[n] · sizes[n] from its tiles.

    `tiles` has counts[0] · counts[1] · … arrays of `sizes`, in row-major order.
    """
    # Without the axes of one tile: LiteRT transposes no more than eight.
    several = [n for n, count in enumerate(counts) if not (known(count) and count == 1)]
    tiles = ops.reshape(tiles, (*(counts[n] for n in several), *sizes))
    order = []
    for n in range(len(sizes)):
        order += [several.index(n)] if n in several else []
        order.append(len(several) + n)
    tiles = ops.transpose(tiles, order)
    return ops.reshape(tiles, [count * size for count, size in zip(counts, sizes, strict=True)])


def _add(buffer, index, array):
    """The buffer with an array added to the one at an index."""
    return backend.write_buffer(buffer, index, backend.read_buffer(buffer, index) + array)


def span_of(spec):
    """The known bounds of the pattern, or None."""
    span = getattr(spec.pattern, "span", None)
    span = span and span()
    return span if span and (span.left is not None or span.right is not None) else None
