"""`Grid`: the cells of a grid in row-major order, after a prefix of positions; other sizes of it"""

import math
import typing

from keras import ops

from keras_attention.core.hints import Tensor
from keras_attention.sequences import shapes

Interpolation = typing.Literal["cubic", "linear", None]
# The parameter of the cubic kernel of PyTorch and OpenCV.
CUBIC = -0.75


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

    def coordinates(self, positions):
        """The coordinate of each axis, of positions; the first goes on into the next image."""
        positions, found = positions - self.prefix if self.prefix else positions, []
        for size in reversed(self.sizes[1:]):
            found.append(positions % size)
            positions = positions // size
        return [positions, *reversed(found)]

    def numbers(self, positions, normalized=False):
        """The same in the dtype of positions, 0 in the prefix; or `normalized` to (−1, 1)."""
        whole, found = ops.cast(positions, "int32"), []
        for size, along in zip(self.sizes, self.coordinates(whole), strict=True):
            along = ops.cast(along, positions.dtype)
            along = (2 * along + 1) / size - 1 if normalized else along
            found.append(ops.where(whole < self.prefix, ops.zeros_like(along), along))
        return found


def resizing(source: int, target: typing.Any, interpolation: Interpolation) -> Tensor:
    """A matrix (target, source) that interpolates `source` values to another number of them."""
    index = ops.cast(ops.arange(target, dtype="int32"), "float32")
    at = (index + 0.5) * (source / ops.cast(target, "float32")) - 0.5
    first = ops.floor(at)
    part = at - first
    if interpolation == "linear":
        shares = {0: 1 - part, 1: part}
    else:
        shares = {-1: _far(1 + part), 0: _near(part), 1: _near(1 - part), 2: _far(2 - part)}
    matrix = 0.0
    for step, share in shares.items():
        # Beyond an edge is the value at the edge.
        cell = ops.clip(ops.cast(first, "int32") + step, 0, source - 1)
        matrix = matrix + share[:, None] * ops.one_hot(cell, source, dtype="float32")
    return matrix


def _near(x):
    """The cubic kernel of Keys 1981 at distances up to 1."""
    return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1


def _far(x):
    """The same at distances from 1 to 2."""
    return CUBIC * (((x - 5) * x + 8) * x - 4)
