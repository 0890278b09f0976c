"""`Grid`: the cells of a grid in row-major order, after a prefix of positions"""

import math
import typing

from keras import ops

from keras_attention.sequences import shapes


class Grid(typing.NamedTuple):
    """The sizes of the axes of a grid, and the number of positions before its first cell."""

    sizes: tuple[int, ...]
    prefix: int = 0

    @classmethod
    def of(cls, grid, prefix):
        """The `Grid` of the arguments `grid` and `prefix`, checked."""
        return cls(shapes.check_grid("grid", grid), shapes.check_count("prefix", prefix, 0))

    @property
    def count(self):
        return self.prefix + math.prod(self.sizes)

    @property
    def strides(self):
        """The distance of neighbors along each axis."""
        return [math.prod(self.sizes[axis + 1 :]) for axis in range(len(self.sizes))]

    def coordinates(self, positions):
        """The coordinate of each axis, of positions; the first goes on into the next image."""
        positions, found = positions - self.prefix if self.prefix else positions, []
        for size in reversed(self.sizes[1:]):
            found.append(positions % size)
            positions = positions // size
        return [positions, *reversed(found)]

    def numbers(self, positions):
        """The same in the dtype of positions, 0 in the prefix."""
        whole = ops.cast(positions, "int32")
        return [
            ops.cast(ops.where(whole < self.prefix, 0, along), positions.dtype)
            for along in self.coordinates(whole)
        ]
