"""Gradients summed over tiles: of keys, values and biases by tiles, of other arrays as a whole."""

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences.sizes import known


class Sums:
    """The sums so far, of gradients by name.

    A dictionary of arrays and buffers goes through the loops, from `zeros`; each tile is `add`ed.

    Args:
        tiles: the `tiling.Tiling`.
        wide: the dtype of sums; that of an array in float64 is float64.
        columns: the "key" and the "value", as columns.
        arrays: `AttentionSpec.arrays`.
    """

    def __init__(self, tiles, wide, columns, arrays):
        self.tiles, self.plan, self.wide = tiles, tiles.plan, wide
        self.columns = {name: columns[name] for name in ("key", "value")}
        self.arrays = arrays

    def zeros(self):
        """No sums yet; None for a single tile."""
        if self.plan.single:
            return None
        found = keras.tree.map_structure(
            lambda array: ops.zeros_like(array, dtype=self._wider(array)), self.arrays
        )
        found["biases"] = tuple(self._bias_buffer(bias) for bias in self.arrays["biases"])
        plan = self.plan
        for name, columns in self.columns.items():
            # A tile (b, g, K, s) for each block of keys.
            shape = (plan.batch, plan.groups, columns.shape[-1], plan.keys)
            found[name] = backend.make_buffer(plan.chunks * plan.key_blocks, shape, self.wide)
        return found

    def add(self, sums, tile, gradients):
        """The sums with the gradients of a tile."""
        if self.plan.single:
            return gradients
        added = {}
        for name, total in sums.items():
            if name in self.columns:
                array = self.tiles.uncut(gradients[name], tile, 3)
                added[name] = _add(total, tile.chunk * self.plan.key_blocks + tile.column, array)
            elif name == "biases":
                each = zip(total, gradients[name], self.arrays[name], strict=True)
                added[name] = tuple(self._add_bias(so_far, tile, *rest) for so_far, *rest in each)
            else:
                added[name] = keras.tree.map_structure(
                    lambda so_far, new: so_far + ops.cast(new, so_far.dtype),
                    *(total, gradients[name]),
                )
        return added

    def together(self, sums):
        """The gradients, each in the shape of its array."""
        found = dict(sums)
        for name in self.columns:
            columns = sums[name][None] if self.plan.single else backend.stack_buffer(sums[name])
            found[name] = ops.swapaxes(columns, -1, -2)
        if not self.plan.single:
            found["biases"] = tuple(map(self._bias_together, sums["biases"], self.arrays["biases"]))
        return found

    def _wider(self, array):
        """The dtype in which gradients of an array of the spec are summed."""
        dtype = keras.backend.standardize_dtype(array.dtype)
        return dtype if dtype == "float64" else self.wide

    # Biases: blocks of an array that broadcasts to (B, H, T', S'), of which `like` is one

    def _counts(self, like):
        """The number of blocks of a bias along each axis: 1 if the axis is 1."""
        sizes = zip(like.shape, self.plan.counts, strict=True)
        return [1 if n == 1 else count for n, count in sizes]

    def _are_unshared(self, like):
        """Whether each tile is computed, and has a block of its own in a bias."""
        one = [known(count) and count == 1 for count in self.plan.counts]
        computed = self.tiles.span is None or one[-1]
        return computed and all(n != 1 or is_one for n, is_one in zip(like.shape, one, strict=True))

    def _bias_buffer(self, like):
        plan, count = self.plan, 1
        for n in self._counts(like):
            count = count * n
        sizes = (plan.batch, plan.heads, plan.queries, plan.keys)
        block = [1 if n == 1 else size for n, size in zip(like.shape, sizes, strict=True)]
        zeros = not self._are_unshared(like)
        return backend.make_buffer(count, block, self._wider(like), zeros=zeros)

    def _add_bias(self, buffer, tile, array, like):
        groupings = self.plan.groupings
        at = (tile.chunk // groupings, tile.chunk % groupings, tile.row, tile.column)
        index = 0
        for size, count, coordinate in zip(like.shape, self._counts(like), at, strict=True):
            index = index if size == 1 else index * count + coordinate
        array = ops.cast(array, self._wider(like))
        if like.shape[3] != 1:
            array = self.tiles.uncut(array, tile, 3)
        if self._are_unshared(like):
            return backend.write_buffer(buffer, index, array)
        return _add(buffer, index, array)

    def _bias_together(self, buffer, like):
        # Axes (counts, sizes), without those of one tile: LiteRT transposes no more than eight.
        tiles, counts = backend.stack_buffer(buffer), self._counts(like)
        sizes = backend.shape(tiles)[1:]
        several = [n for n, count in enumerate(counts) if not (known(count) and count == 1)]
        tiles = ops.reshape(tiles, (*(counts[n] for n in several), *sizes))
        order = []
        for n in range(len(sizes)):
            order += [several.index(n)] if n in several else []
            order.append(len(several) + n)
        return ops.reshape(ops.transpose(tiles, order), backend.shape(like))


def _add(buffer, index, array):
    return backend.write_buffer(buffer, index, backend.read_buffer(buffer, index) + array)
