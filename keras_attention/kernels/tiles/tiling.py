"""Splits a problem into tiles, and assembles the results of tiles.

    whole   query (B, T, H, K)         key (B, S, G, K)      scores (B, H, T', S'), H = G · R
    rows    query (n, b, g, r·t, K)    of n tiles; outputs and their gradients are kept so too
    columns                            key (n, b, g, s, K)
    tile    query (b, g, r·t, K)       key (b, g, s, K)      scores (b, g, r·t, s), or (b, h, t, s)

B = C · b for C batches, H = M · h for M groupings of heads, T' = X · t for X blocks, n = C · M · X.
R is the number of query heads that share a key head. T' and S' are T and S, padded to multiples of
a tile's t and s. A tile has all R heads of a key head: r = R. The first axis of rows and columns
counts tiles, so that a tile is a slice which TensorFlow does not copy.
"""

import copy
import typing

from keras import ops

from keras_attention.backend import backend
from keras_attention.kernels.semantics import MASKED
from keras_attention.kernels.tiles import strategies
from keras_attention.sequences import masks
from keras_attention.sequences.sizes import known, least, most, multiple, same
from keras_attention.spec import Positions, mapped, padded


class Tile(typing.NamedTuple):
    """A chunk, a block of queries and one of keys, of which it has `keys` from its `first` on."""

    chunk: object
    row: object
    column: object
    first: object
    keys: object


class Tiling:
    """A problem in tiles: cuts its arrays, and derives the spec of a tile."""

    def __init__(self, spec, strategy, plan, sizes):
        self.spec, self.strategy, self.plan = spec, strategy, plan
        self.batch, self.queries, self.keys = sizes.batch, sizes.queries, sizes.keys
        self.masks_keys_apart = strategies.masks_apart(strategy, spec)
        self.pads_keys = not multiple(self.keys, plan.keys)
        # Whether a row of scores may have masked ones.
        self.restricted = spec.restricted or self.pads_keys
        at = spec.positions
        whole = tuple(mask for mask in spec.masks if not self._is_apart(mask))
        # All arrays but those that have a gradient; see `custom_vjp`.
        self.constants = {
            "positions": (
                self._pad(at.query, -1, self.queries, plan.queries),
                self._pad(at.key, -1, self.keys, plan.keys),
            ),
            "offset": at.offset if at.consecutive and not at.counted else None,
            "whole": mapped({**spec.constants, "masks": whole}, self.fit),
            "dropout_key": backend.dropout_key(spec.seed) if spec.dropout else None,
            "key_terms": self._key_terms(),
        }
        self.span = spec.span

    def _is_apart(self, mask):
        """Whether a mask is one of keys that `key_terms` stand for."""
        return self.masks_keys_apart and tuple(mask.shape[1:3]) == (1, 1)

    def _key_terms(self):
        """Columns (n, b, g, s, 1) of what masks of keys, and padding, add to scores, or None."""
        found = [self.fit(mask) for mask in self.spec.masks if self._is_apart(mask)]
        length = self.plan.key_blocks * self.plan.keys
        if self.pads_keys:
            found.append((ops.arange(length, dtype="int32") < self.keys)[None, None, None])
        if not (self.masks_keys_apart and found):
            return None
        terms = ops.where(ops.transpose(masks.every(found), (0, 3, 1, 2)), 0.0, MASKED)
        groups = self.plan.groupings * self.plan.groups
        terms = ops.broadcast_to(terms, (self.batch, length, groups, 1))
        return self._apart(terms, self.plan.key_blocks, self.plan.keys, self.plan.groups)

    def with_constants(self, constants):
        """The same with other arrays as `constants`."""
        same = copy.copy(self)
        same.constants = constants
        return same

    # Whole arrays

    def rows_of(self, query):
        """Rows of a query (B, T, H, K)."""
        plan = self.plan
        query = self._pad(query, 1, self.queries, plan.queries)
        tiles = self._apart(query, plan.query_blocks, plan.queries, plan.heads)
        return ops.reshape(tiles, (backend.shape(tiles)[0], *plan.shape, query.shape[-1]))

    def columns_of(self, key):
        """Columns of a key or value (B, S, G, K)."""
        plan = self.plan
        key = self._pad(key, 1, self.keys, plan.keys)
        return self._apart(key, plan.key_blocks, plan.keys, plan.groups)

    def _apart(self, array, blocks, size, heads):
        """Tiles (n, b, h, t, K) of (B, T, H, K)."""
        plan, features = self.plan, array.shape[-1]
        sizes = (plan.batches, plan.batch, blocks, size, plan.groupings, heads, features)
        array = _transpose(ops.reshape(array, sizes), "CbXtMhK", "CMXbhtK")
        return ops.reshape(array, (plan.chunks * blocks, plan.batch, heads, size, features))

    def from_rows(self, rows):
        """(B, T, H, K) of rows."""
        plan, features = self.plan, rows.shape[-1]
        # Sizes that are known, not those of `rows`: ONNX's converter gets them wrong after a loop.
        sizes = *plan.counts[:3], plan.batch, plan.heads, plan.queries, features
        rows = _transpose(ops.reshape(rows, sizes), "CMXbhtK", "CbXtMhK")
        length = plan.query_blocks * plan.queries
        rows = ops.reshape(rows, (self.batch, length, plan.groupings * plan.heads, features))
        if same(length, self.queries):
            return rows
        rows = rows[:, : self.queries]
        if not known(self.queries):
            return rows
        # Where the number of tiles is unknown, TensorFlow does not see that the length is known.
        return ops.reshape(rows, (self.batch, self.queries, *rows.shape[2:]))

    def fit(self, array, axes="bhts"):
        """An array that broadcasts to these axes, padded, each axis known to be 1 or whole."""
        if None in array.shape:
            heads = self.plan.groupings * self.plan.heads
            whole = {"b": self.batch, "h": heads, "t": self.queries, "s": self.keys}
            sizes = zip(array.shape, axes, strict=True)
            array = ops.broadcast_to(array, [whole[x] if n is None else n for n, x in sizes])
        pads = {"t": (self.queries, self.plan.queries), "s": (self.keys, self.plan.keys)}
        for axis, letter in enumerate(axes):
            if letter in pads and array.shape[axis] != 1:
                array = self._pad(array, axis, *pads[letter])
        return array

    def _pad(self, array, axis, length, size):
        """`array` with zeros after its end along an axis, up to a multiple of `size`, not 0."""
        if multiple(length, size):
            return array
        return padded(array, axis, 0, most(size, -(-length // size) * size) - length)

    # Cutting

    def tile(self, chunk, row, column):
        return Tile(chunk, row, column, 0, self.plan.keys)

    def visible(self, chunk, row):
        """The `Tile` of a block of queries and the keys that they can see, in one block of all."""
        # Programs of XLA have no sizes that vary; they never run the softmax of whole rows.
        varies = self.strategy.whole_rows and self.spec.normalization is None
        if not varies or self.span is None or self.plan.single:
            return self.tile(chunk, row, 0)
        keys, step = self.plan.keys, self.strategy.step
        # Not by the quotient of a negative number: ONNX's converter truncates it.
        first, last = self._reach(row, step, (keys + step - 1) // step)
        # At least one, so that the softmax of a query without keys is a number.
        first = least(first * step, keys - 1)
        last = least(most(last * step, first + 1), keys)
        return Tile(chunk, row, 0, first, last - first)

    def _first_key(self, tile):
        """The index of the tile's first key in the sequence."""
        return tile.column * self.plan.keys + tile.first

    def cut_rows(self, rows, tile):
        """A tile's (b, g, r·t, K) of rows."""
        index = tile.chunk * self.plan.query_blocks + tile.row
        rows = backend.dynamic_slice(rows, 0, index, 1)
        return ops.reshape(rows, (*self.plan.shape, rows.shape[-1]))

    def cut_columns(self, columns, tile):
        """A tile's (b, g, s, K) of columns."""
        plan = self.plan
        columns = backend.dynamic_slice(columns, 0, tile.chunk * plan.key_blocks + tile.column, 1)
        columns = ops.reshape(columns, (plan.batch, plan.groups, plan.keys, columns.shape[-1]))
        if tile.keys is plan.keys:
            return columns
        return backend.dynamic_slice(columns, 2, tile.first, tile.keys)

    def uncut(self, array, tile, axis):
        """An array of a tile's keys, with zeros for the other keys of the block."""
        if tile.keys is self.plan.keys:
            return array
        return padded(array, axis, tile.first, self.plan.keys - tile.first - tile.keys)

    def _cut(self, tile):
        """A function for `mapped`: a tile's part of an array; axes of 1 stay 1."""
        plan = self.plan
        whole = {
            "b": (tile.chunk // plan.groupings * plan.batch, plan.batch),
            "h": (tile.chunk % plan.groupings * plan.groups * plan.repeats, plan.heads),
            "t": (tile.row * plan.queries, plan.queries),
            "s": (self._first_key(tile), tile.keys),
        }

        def cut(array, axes):
            sizes = zip(axes, array.shape, strict=False)
            cuts = {axis: whole[letter] for axis, (letter, n) in enumerate(sizes) if n != 1}
            return backend.dynamic_slices(array, cuts)

        return cut

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
        return {**arrays, **mapped({"biases": arrays["biases"]}, self._cut(tile))}

    def cut_spec(self, arrays, tile):
        """The spec of a tile, whose arrays are the result of `cut_arrays`."""
        others = {**self.constants["whole"], **arrays, "biases": None}
        found = mapped(others, self._cut(tile))
        if self.pads_keys and not self.masks_keys_apart:
            column = self._first_key(tile) + ops.arange(tile.keys, dtype="int32")
            found["masks"] += ((column < self.keys)[None, None, None],)
        return self.spec.with_arrays(arrays).replace(**found, positions=self._positions(tile))

    def _positions(self, tile):
        """The `Positions` of a tile, whose offset is from its own first key."""
        plan, constants = self.plan, self.constants
        consecutive, offset = self.spec.positions.consecutive, 0
        if consecutive:
            offset = self._start() + tile.row * plan.queries - self._first_key(tile)
        cut, (i, j) = self._cut(tile), constants["positions"]
        both = cut(i, "bt"[-len(i.shape) :]), cut(j, "bs"[-len(j.shape) :])
        return Positions(*both, consecutive, offset)

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

    def over_columns(self, chunk, row, body, first, zeros):
        """`carry = body(tile, carry)` for the tiles of keys that queries of a block may see.

        It starts from `first` if there is known to be one, otherwise from `zeros()`.
        """
        if known(self.plan.key_blocks) and self.plan.key_blocks == 1:
            return body(self.visible(chunk, row), first)
        first, last = 0, self.plan.key_blocks
        if self.span is not None:
            first, last = self._reach(row, self.plan.keys, last)
        return backend.fori_loop(
            first, last, lambda j, carry: body(self.tile(chunk, row, j), carry), zeros()
        )

    def _reach(self, row, size, count):
        """Of `count` blocks of `size` keys, the first that queries of a block see, and the end."""
        start = self._start() + row * self.plan.queries
        first, last = 0, count
        if self.span.left is not None:
            first = most(0, (start - self.span.left) // size)
        if self.span.right is not None:
            end = start + self.plan.queries - 1 + self.span.right
            last = least(last, most(0, end // size + 1))
        return first, last

    def over_rows(self, body, sizes, dtype, carry=()):
        """The results of `body(chunk, row, carry)` for each block of queries, as rows.

        `body` returns arrays (b, g, r·t, n), for each n of `sizes`, and the next carry. This
        returns the rows of each, and the last carry.
        """
        plan = self.plan
        if plan.single:
            found, carry = body(0, 0, carry)
            return [x[None] for x in found], carry

        def step(n, state):
            buffers, carry = state
            one = known(plan.query_blocks) and plan.query_blocks == 1
            chunk, row = (n, 0) if one else (n // plan.query_blocks, n % plan.query_blocks)
            found, carry = body(chunk, row, carry)
            written = (backend.write_buffer(b, n, x) for b, x in zip(buffers, found, strict=True))
            return tuple(written), carry

        count = plan.chunks * plan.query_blocks
        buffers = tuple(
            backend.make_buffer(count, (*plan.shape, n), dtype, zeros=False) for n in sizes
        )
        buffers, carry = backend.fori_loop(0, count, step, (buffers, carry))
        return [backend.stack_buffer(buffer) for buffer in buffers], carry


def _transpose(array, given, wanted):
    """An array whose axes have the letters `given`, in the order `wanted`."""
    return ops.transpose(array, [given.index(axis) for axis in wanted])
