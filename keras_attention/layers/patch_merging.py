"""`PatchMerging`: neighboring cells of a grid as one, with more features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_attention import masks, parts, saving, shapes
from keras_attention.backend import backend
from keras_attention.hints import Initializer, Tensor
from keras_attention.kinds import Count, Positive, keep
from keras_attention.layers import cell_groups, norms, position_wise, projections


@saving.register
class PatchMerging(saving.ConfigurableLayer):
    r"""Merges groups of 2 by 2 cells of a grid (Liu et al. 2021, Swin, section 3.1).

    `y_rc = W norm([x_(2r,2c), x_(2r+1,2c), x_(2r,2c+1), x_(2r+1,2c+1)])`, with a layer norm of
    the 4D features, and 2D outputs by default: between stages of a model, the grid gets smaller
    and vectors get longer, as in a convolutional network.

    Args:
        grid: (height, width) of the grid that a sequence is made of, row by row, or the sizes of
            more or fewer axes: (depth, height, width) of a video; not needed for inputs that are a
            grid.
        dim: features of the output; None is twice those of the input.
        size: cells along an axis that become one: an integer, or one for each axis.
        layer_norm_epsilon: added to variances by the norm.
        kernel_initializer: of W.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: a sequence (B, height · width, D), or a grid (B, height, width, D).
        mask: boolean, as `x` without features, True = a real cell; combined with the mask that `x`
            carries. Other cells count as 0, whatever they have; a group of no real one is masked.

    Returns:
        (B, height / 2 · width / 2, dim), or (B, height / 2, width / 2, dim), carrying the mask of
        groups.

    Raises:
        ValueError: a number is not as described, `x` is not of the grid, or the sizes of the grid
            are no multiples of `size`.
        TypeError: `mask` is not boolean.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 4 * 6, 16))
    >>> keras_attention.PatchMerging((4, 6))(x).shape
    (2, 6, 32)
    """

    _masks = "`mask` (B, height · width) for padding"

    def __init__(
        self,
        grid: Sequence[int] | None = None,
        dim: Count | None = None,
        size: int | Sequence[int] = 2,
        layer_norm_epsilon: Positive = 1e-5,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        keep(self, locals())
        self.grid = None if grid is None else shapes.check_grid("grid", grid)
        several = isinstance(size, (tuple, list))
        self.size: Any = (shapes.check_sizes if several else shapes.check_count)("size", size, 1)

    def build(self, x_shape, mask_shape=None):
        # `call` checks sizes: those that Keras makes up on PyTorch are saved, and built from again.
        _, groups = self._groups(x_shape, known_size=lambda size: None)
        shape = (x_shape[0], None, math.prod(groups) * x_shape[-1])
        self._norm = norms.make("layer", "norm", shape, self.dtype_policy, self.layer_norm_epsilon)
        dim = 2 * x_shape[-1] if self.dim is None else self.dim
        self._dense = projections.dense(self, "dense", dim, shape, use_bias=False)

    norm = parts.part("_norm", "The norm of the features of a group.")
    dense = parts.part("_dense", "The projection of a group.")

    def _groups(self, x_shape, known_size=backend.known_size):
        """The sizes of the grid and of a group; the shape is checked as far as it is known."""
        sequence = self.grid is not None
        sizes = list(x_shape[1:-1] if self.grid is None else self.grid)
        groups = [self.size] * len(sizes) if isinstance(self.size, int) else list(self.size)
        known = known_size(x_shape[1]) if sequence and len(x_shape) == 3 else None
        if (
            not sizes
            or len(groups) != len(sizes)
            or x_shape[-1] is None
            or (sequence and (len(x_shape) != 3 or known not in (None, math.prod(sizes))))
        ):
            raise ValueError(
                "`x` must be the sequence of a `grid`, (batch, height · width, features), or "
                "without one a grid, (batch, height, width, features), with as many axes as `size` "
                f"has. Received: x.shape={tuple(x_shape)}, grid={self.grid}, size={self.size}"
            )
        for cells, group in zip(map(known_size, sizes), groups, strict=True):
            if cells is not None and cells % group:
                raise ValueError(
                    "Sizes of the grid must be multiples of `size`: pad or crop it. Received: "
                    f"x.shape={tuple(x_shape)}, grid={self.grid}, size={self.size}"
                )
        return sizes, groups

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self._groups(x.shape)
        mask = masks.padding(x, mask)
        x = masks.clear(ops.cast(x, self.compute_dtype), mask)
        merged = position_wise.apply(self, self._dense, self._norm(self._grouped(x)))
        return masks.carry(merged, cell_groups.of_mask(self._grouped, mask))

    def _grouped(self, x):
        """The features (B, N, n) of groups, or (B, rows, columns, n), the first axis fastest."""
        sizes = ops.shape(x)[1:-1] if self.grid is None else self.grid
        _, groups = self._groups(x.shape)
        made_up = isinstance(x.shape[1], int) and backend.known_size(x.shape[1]) is None
        if self.grid is not None and made_up:
            # On PyTorch, Keras infers shapes from arrays of lengths that it makes up.
            x = ops.swapaxes(backend.first(ops.swapaxes(x, 1, 2), math.prod(sizes)), 1, 2)
        return cell_groups.grouped(x, sizes, groups, self.grid is not None, first_fastest=True)

    def compute_mask(self, x, previous_mask=None):
        masks.padding(x, previous_mask)
        if previous_mask is None:
            return None
        _, groups = self._groups(x.shape)
        return cell_groups.GroupMask(groups, self.grid, self.grid is not None)(previous_mask)

    def compute_output_shape(self, x_shape, mask_shape=None):
        sizes, groups = self._groups(x_shape)
        counts = cell_groups.counts(sizes, groups, self.grid is not None)
        return (x_shape[0], *counts, 2 * x_shape[-1] if self.dim is None else self.dim)
