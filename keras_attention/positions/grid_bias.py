"""`GridRelativeBias`: a learned bias per head and offset on a grid, as in Swin and BEiT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.grid import Grid
from keras_attention.hints import Constraint, Initializer, Regularizer, Tensor
from keras_attention.kinds import keep
from keras_attention.positions.base import Position, check_heads


class GridRelativeBias(Position):
    r"""score(i, j) = qᵀ k + E[r_i − r_j, c_i − c_j, h], for rows r and columns c. Liu et al. 2021
    (Swin), equation 4.

    The table has a row for each offset, from −(size − 1) to size − 1 along each axis, in row-major
    order of r_i − r_j and c_i − c_j: that of Swin's `relative_position_bias_table`. Offsets beyond
    share the last row of their axis. With a `prefix` there are three more rows, as in BEiT (Bao et
    al. 2022): for queries of the prefix, for keys of it, and for both.

    In the windows of `patterns.GridWindow`, and in the neighborhoods of `patterns.Neighborhood`, on
    the same grid and with the same prefix, the bias is computed once for all of them.

    Args:
        grid: (height, width) of the sequence in row-major order, or the sizes of more or fewer
            axes: (depth, height, width) of a video.
        size: the number of different distances along an axis, 0 included: an integer, or one for
            each axis; the size of a window for `patterns.GridWindow`. None is that of the grid.
        prefix: the number of positions before the grid, such as class tokens.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table E,
            (rows, H).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is not as described, or layers with different numbers of heads share
            it.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import patterns, positions
    >>> layer = keras_attention.SelfAttention(
    ...     4, 8,
    ...     pattern=patterns.GridWindow((6, 9), 3),
    ...     position=positions.GridRelativeBias((6, 9), 3),
    ... )
    >>> layer(keras.random.normal((2, 54, 32))).shape
    (2, 54, 32)
    >>> layer.position.embeddings.shape
    (25, 4)
    """

    counts = False

    def __init__(
        self,
        grid: Sequence[int],
        size: int | Sequence[int] | None = None,
        prefix: int = 0,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        cells = Grid.of(grid, prefix)
        sizes = shapes.check_axes("size", cells.sizes if size is None else size, cells.sizes)
        super().__init__(**kwargs)
        keep(self, locals())
        self.grid, self.prefix = cells
        self.size = sizes

    @property
    def on_grid(self):  # type: ignore[override]
        return Grid(self.grid, self.prefix)

    def build(self, query_shape, key_shape):
        shape = (self._offsets() + 3 * bool(self.prefix), query_shape[2])
        shapes.check_memory("embeddings", shape)
        self.embeddings = self._add_weight("embeddings", shape)

    def _offsets(self):
        return math.prod([2 * n - 1 for n in self.size])

    def rows(self, i: Tensor, j: Tensor) -> Tensor:
        """The row of the table for queries at positions `i` and keys at positions `j`."""
        of_queries, of_keys = map(self.on_grid.coordinates, (i, j))
        row: Any = 0
        for n, at, key in zip(self.size, of_queries, of_keys, strict=True):
            row = row * (2 * n - 1) + ops.clip(at - key, 1 - n, n - 1) + (n - 1)
        if not self.prefix:
            return row
        row = ops.where(i < self.prefix, self._offsets(), row)
        of_prefix = ops.where(i < self.prefix, self._offsets() + 2, self._offsets() + 1)
        return ops.where(j < self.prefix, of_prefix, row)

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_heads(self, self.embeddings.shape[1], num_heads)
        columns, rows = ops.transpose(self.embeddings), self.rows(i, j)
        if len(rows.shape) == 2:
            return backend.take(columns, rows, axis=1)
        return ops.moveaxis(backend.take(columns, rows[:, 0], axis=1), 0, 1)
