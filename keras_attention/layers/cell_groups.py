"""Groups of neighboring cells of a grid: the patches of an image, and cells that become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.hints import Tensor


def grouped(x, sizes, groups, flatten, first_fastest=False):
    """The features (B, N, n) of groups, or (B, rows, columns, n), of `x` (B, ..., D).

    Args:
        sizes: cells along each axis of the grid, multiples of those of `groups`.
        groups: cells of a group along each axis.
        flatten: whether groups are a sequence, row by row.
        first_fastest: whether the first axis of a group changes fastest, instead of the last.
    """
    batch, features = ops.shape(x)[0], x.shape[-1]
    counts = [size // group for size, group in zip(sizes, groups, strict=True)]
    pairs = [n for pair in zip(counts, groups, strict=True) for n in pair]
    axes = list(range(1, 2 * len(counts), 2))
    inside = [axis + 1 for axis in axes]
    x = ops.reshape(x, (batch, *pairs, features))
    x = ops.transpose(x, (0, *axes, *inside[:: -1 if first_fastest else 1], 2 * len(counts) + 1))
    counts = [math.prod(counts)] if flatten else counts
    return ops.reshape(x, (batch, *counts, math.prod(groups) * features))


def counts(sizes, groups, flatten):
    """The shape of the groups, as far as it is known."""
    found = [
        None if size is None else size // group for size, group in zip(sizes, groups, strict=True)
    ]
    if not flatten:
        return found
    return [None if None in found else math.prod(found)]


def of_mask(group, mask):
    """The mask of groups that have a real cell, of one of cells; `group` groups arrays."""
    return None if mask is None else ops.any(group(mask[..., None]), axis=-1)


@saving.register
class GroupMask(saving.ConfigurableLayer):
    """The operation of a functional model that makes the mask of groups, of one of cells.

    The sizes of `groups` are those of `grouped`; of a sequence, `grid` has those of its cells.
    """

    def __init__(
        self,
        groups: Sequence[int],
        grid: Sequence[int] | None = None,
        flatten: bool = True,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.groups, self.grid, self.flatten = groups, grid, flatten

    def call(self, mask: Tensor) -> Tensor:
        sizes = ops.shape(mask)[1:] if self.grid is None else self.grid
        return of_mask(lambda x: grouped(x, sizes, self.groups, self.flatten), mask)

    def compute_output_spec(self, mask):
        sizes = mask.shape[1:] if self.grid is None else self.grid
        shape = (mask.shape[0], *counts(sizes, self.groups, self.flatten))
        return keras.KerasTensor(shape, "bool")
