"""Patterns on the coordinates of a grid: an image, a video, or a volume, in row-major order."""

import functools
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_attention.core.hints import Tensor
from keras_attention.patterns.base import And, Groups, Not, Pattern, Span
from keras_attention.sequences import shapes
from keras_attention.sequences.grid import Grid


class _Grid(Pattern, saved=False):
    """A pattern on `grid`, after `prefix` positions that all see, and that see all.

    Cells see each other in windows of `size`, the first of which starts at `shift`, unless a
    subclass overrides `_near` and `groups`.
    """

    sees_itself = True
    counts = False
    size: tuple[int, ...]

    def __init__(self, grid, prefix):
        self._cells = Grid.of(grid, prefix)
        self.grid, self.prefix = self._cells
        self.shift: tuple[int, ...] = (0,) * len(self.grid)
        self.dilation: tuple[int, ...] = (1,) * len(self.grid)

    def attends(self, i: Tensor, j: Tensor) -> Tensor:
        near = self._near(self._cells.coordinates(i), self._cells.coordinates(j))
        if not self.prefix:
            return near
        first = ops.logical_or(ops.less(i, self.prefix), ops.less(j, self.prefix))
        return ops.logical_or(near, first)

    def _near(self, query, key):
        """Whether cells of these coordinates see each other."""
        numbers = []
        for rows, *others in (query, key):
            image, number = rows // self.grid[0], 0
            for most, width, first, along in zip(
                self.grid, self.size, self.shift, [rows % self.grid[0], *others], strict=True
            ):
                # One window more than fit, for what is before the first.
                number = number * (most // width + 2) + (along + (width - first)) // width
                image = image * (most // width + 2)
            numbers.append(image + number)
        return ops.equal(*numbers)

    def groups(self) -> Groups | None:
        return _boxes(self.grid, self.size, (0,) * len(self.grid), self.shift, self.prefix)

    def span(self) -> Span:
        if self.prefix:
            return Span()
        most = 0
        for along, n, rate in zip(self.grid, self.size, self.dilation, strict=True):
            most = most * along + (n - 1) * rate
        return Span(most, most)


class GridWindow(_Grid):
    """Attends within windows of a grid, such as an image: ⌊(r − shift) / size⌋ of both are equal,
    for the row r, and likewise for the column.

    The windows of Swin Transformers (Liu et al. 2021, section 3.2). Successive layers have a
    `shift` of 0 and of half a window. A shifted window at the border is smaller, as in the paper,
    where the image is rotated, and what did not lie side by side is masked. Only pairs of one
    window are computed.

    Args:
        grid: (height, width) of the sequence in row-major order, or the sizes of more or fewer
            axes: (depth, height, width) of a video. Positions beyond it are those of a next image.
        size: of a window, an integer of at most the grid's, or one for each axis.
        shift: where the first whole window starts, less than `size`; likewise.
        prefix: the number of positions before the grid, such as class tokens, which attend to all,
            and to which all attend.

    Raises:
        ValueError: a number is not as described.

    >>> from keras_attention import patterns
    >>> window = patterns.GridWindow((4, 4), 2)
    >>> [j for j in range(16) if window(5, j)]
    [0, 1, 4, 5]
    >>> shifted = patterns.GridWindow((4, 4), 2, shift=1)
    >>> [j for j in range(16) if shifted(5, j)]
    [5, 6, 9, 10]
    """

    def __init__(
        self,
        grid: Sequence[int],
        size: int | Sequence[int],
        shift: int | Sequence[int] = 0,
        prefix: int = 0,
    ):
        super().__init__(grid, prefix)
        self.size = shapes.check_axes("size", size, self.grid)
        self.shift = shapes.check_axes("shift", shift, self.grid, minimum=0)
        axes = zip(self.shift, self.size, self.grid, strict=True)
        if any(not first < width <= most for first, width, most in axes):
            raise ValueError(
                "`shift` must be less than `size`, and `size` at most the grid's along each axis. "
                f"Received: grid={self.grid}, size={self.size}, shift={self.shift}"
            )


class Neighborhood(_Grid):
    """Attends to the nearest `size` by `size` keys of a grid: the neighborhood of a query, moved
    inward at the border, so that all see the same number of keys.

    Neighborhood attention (Hassani et al. 2023, section 3.1). Time and memory grow with the number
    of queries times that of the keys around 8 by 8 queries, (7 + size)². An even neighborhood has
    one key more before the query than after it, as in NATTEN.

    With a `dilation` d (Hassani and Shi 2022), cells d apart along an axis are a grid of their own,
    in which the neighborhood is: a query sees only cells at multiples of d.

    Args:
        grid, prefix: as of `GridWindow`.
        size: of a neighborhood, an integer, or one for each axis.
        dilation: likewise; `size` times `dilation` is at most the grid's size.

    Raises:
        ValueError: a number is not as described.

    >>> from keras_attention import patterns
    >>> near = patterns.Neighborhood((5, 5), 3)
    >>> [j for j in range(25) if near(12, j)]
    [6, 7, 8, 11, 12, 13, 16, 17, 18]
    >>> [j for j in range(25) if near(0, j)]
    [0, 1, 2, 5, 6, 7, 10, 11, 12]
    >>> [j for j in range(8) if patterns.Neighborhood((8,), 3, dilation=2)(3, j)]
    [1, 3, 5]
    """

    def __init__(
        self,
        grid: Sequence[int],
        size: int | Sequence[int],
        prefix: int = 0,
        dilation: int | Sequence[int] = 1,
    ):
        super().__init__(grid, prefix)
        self.size = shapes.check_axes("size", size, self.grid)
        self.dilation = shapes.check_axes("dilation", dilation, self.grid)
        for most, width, rate in zip(self.grid, self.size, self.dilation, strict=True):
            if width * rate > most:
                raise ValueError(
                    "`size` of a neighborhood times `dilation` must be at most the grid's size "
                    f"along each axis. Received: grid={self.grid}, size={self.size}, "
                    f"dilation={self.dilation}"
                )

    def _near(self, query, key):
        near, axes = None, (self.grid, self.size, self.dilation, query, key)
        for most, width, rate, at, other in zip(*axes, strict=True):
            image = at // most * most
            at, other = at - image, other - image
            if rate > 1:
                # Those of another residue are not in this grid, whose first cell is `rest`.
                rest = at % rate
                most, at, other = (most - rest + rate - 1) // rate, at // rate, other - rest
                other = ops.where(other % rate == 0, other // rate, -1)
            first = ops.minimum(ops.maximum(at - width // 2, 0), most - width)
            inside = ops.logical_and(other >= first, other < first + width)
            near = inside if near is None else ops.logical_and(near, inside)
        return near

    def groups(self) -> Groups:
        if max(self.dilation) > 1:
            return _dilated(self.grid, self.size, self.dilation, self.prefix)
        # About 64 queries to a box, which reaches over its border by half a neighborhood. Those at
        # the border of the grid reach further inward, and find those keys in a box with more
        # positions than that: so must the last box, which has what the others leave.
        width = {1: 64, 2: 8}.get(len(self.grid), 4)
        box, halo = [], []
        for most, size in zip(self.grid, self.size, strict=True):
            least = min(most, max(-(-most // -(-most // width)), size // 2 + 1))
            wide = range(least, most + 1)
            box.append(next(n for n in wide if (most - 1) % n >= size // 2))
            halo.append(size // 2 if box[-1] < most else 0)
        return _boxes(self.grid, tuple(box), tuple(halo), self.shift, self.prefix, exact=False)


@functools.lru_cache(maxsize=64)
def _dilated(grid, size, dilation, prefix):
    """Groups of a neighborhood in each grid of the cells that are `dilation` apart."""
    cells, found = np.arange(np.prod(grid)).reshape(grid) + prefix, []
    for rest in np.ndindex(dilation):
        own = cells[tuple(map(slice, rest, grid, dilation))]
        each = Neighborhood(own.shape, size).groups()
        # The last one is of none, −1.
        own = np.append(own.ravel(), -1)
        found.append((own[each.queries], own[each.keys]))

    def joined(arrays):
        most = max(array.shape[1] for array in arrays)
        wide = [np.pad(x, ((0, 0), (0, most - x.shape[1])), constant_values=-1) for x in arrays]
        return np.concatenate(wide)

    queries, keys = map(joined, zip(*found, strict=True))
    return Groups(queries, keys, prefix, grid=grid)


class Axial(_Grid):
    """Attends along the axes of a grid: to the same row and to the same column.

    Axial attention (Ho et al. 2019, section 3). The paper's layers have one axis each, given by
    `axis`; without it, a query sees all keys that differ from it in one coordinate, as in
    criss-cross attention (Huang et al. 2019). Only these pairs are computed.

    Args:
        grid, prefix: as of `GridWindow`.
        axis: along which to attend, counted from the first, or if negative from the last: 0 is
            along columns of an image, 1 along rows. None is all of them.

    Raises:
        ValueError: a number is not as described.

    >>> from keras_attention import patterns
    >>> cross = patterns.Axial((4, 4))
    >>> [j for j in range(16) if cross(5, j)]
    [1, 4, 5, 6, 7, 9, 13]
    >>> [j for j in range(16) if patterns.Axial((4, 4), axis=0)(5, j)]
    [1, 5, 9, 13]
    """

    def __init__(self, grid: Sequence[int], axis: int | None = None, prefix: int = 0):
        super().__init__(grid, prefix)
        axis = shapes.check_integer("axis", axis)
        if axis is not None and not -len(self.grid) <= axis < len(self.grid):
            raise ValueError(
                f"`axis` must be one of the {len(self.grid)} axes of the grid, or None. "
                f"Received: axis={axis}"
            )
        self.axis = axis
        axes = range(len(self.grid))
        # Along one axis, a line is a window. Those of all axes have a pattern each, the last first.
        seen = axes if axis is None else [axis % len(self.grid)]
        self.size = tuple(n if at in seen else 1 for at, n in enumerate(self.grid))
        self._lines = [Axial(grid, n, prefix) for n in reversed(axes)] if axis is None else []
        self.sees_itself = axis is not None

    def _near(self, query, key):
        if not self._lines:
            return super()._near(query, key)
        return functools.reduce(ops.logical_or, [line._near(query, key) for line in self._lines])

    def parts(self) -> list[Pattern]:
        if not self._lines:
            return [self]
        # Two axes cross at the query alone. What the first has, with the prefix, no other does.
        first, *others = self._lines
        return [first, *(And([other, Not(first)]) for other in others)]

    def groups(self) -> Groups | None:
        return None if self._lines else super().groups()


@functools.lru_cache(maxsize=64)
def _boxes(grid, box, halo, shift, prefix, exact=True):
    """Groups of a grid cut into boxes from `shift` on, with keys up to `halo` beyond each box."""
    # What is left before the first and after the last box are boxes too: if `box` divides the axis
    # one and the same, in which the pattern has to tell them apart.
    firsts, wraps = [], []
    for size, width, first in zip(grid, box, shift, strict=True):
        wraps.append(first > 0 and size % width == 0)
        firsts.append(np.arange(first if wraps[-1] or not first else first - width, size, width))

    def positions(margins):
        """(N, n): those of each box and `margins` around it."""
        at, real = np.zeros((), int), np.ones((), bool)
        for axis, (size, width, margin) in enumerate(zip(grid, box, margins, strict=True)):
            along = firsts[axis][:, None] + np.arange(-margin, width + margin)
            along = along % size if wraps[axis] else along
            apart = [1] * (2 * len(grid))
            apart[axis], apart[len(grid) + axis] = along.shape
            along = along.reshape(apart)
            at, real = at * size + along, real & (along >= 0) & (along < size)
        count = np.prod([len(first) for first in firsts])
        return np.where(real, at + prefix, -1).reshape(count, -1)

    queries = positions((0,) * len(grid))
    keys = positions(halo) if any(halo) else queries
    # One that lies inside the grid, in its own order.
    ordered = (keys >= 0).all(1) & (np.diff(keys, axis=1, prepend=-1) > 0).all(1)
    alike = int(np.argmax(ordered)) if ordered.any() else None
    return Groups(queries, keys, prefix, exact and not any(wraps), tuple(grid), alike)
