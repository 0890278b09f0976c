"""Absolute positions on a grid, such as that of the patches of an image: sinusoidal or learned."""

from collections.abc import Callable
from typing import Any, get_args

from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Constraint, Initializer, Regularizer, Tensor
from keras_attention.layers.embeddings import position_embedding
from keras_attention.layers.embeddings.position_embedding import MergeMode, PositionEmbedding
from keras_attention.sequences import shapes
from keras_attention.sequences.grid import Grid, Interpolation, resizing


class GridEmbedding(PositionEmbedding, saved=False):
    """The base of both: merges the vectors of a grid's cells into a grid or a sequence of them."""

    # Vectors (rows, columns, size) of the cells of a grid of these sizes.
    vectors: Callable[[tuple[Any, ...], int], Tensor]
    # A cell is where it is, whether those before it are masked or not.
    counts = False
    _count_name = "prefix + cells of the grid"

    def __init__(self, grid: tuple[int, ...] | None = None, prefix: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.grid = shapes.check_sizes("grid", grid, 1)
        self.prefix = shapes.check_count("prefix", prefix, minimum=0)
        self._keep_cells(self.grid)

    def _keep_cells(self, sizes):
        """Stores the grid that sequences are made of, and the number of their positions."""
        self._cells = sizes
        self._count = None if sizes is None else Grid(sizes, self.prefix).count

    def on_grid(self, x: Tensor, sizes: tuple[Any, ...]) -> Tensor:
        """As a call, of a sequence that is made of a grid of any sizes, which may be symbols."""
        known: Any = tuple(backend.known_size(n) if isinstance(n, int) else None for n in sizes)
        cells = None if None in known else Grid(known, self.prefix).count
        # Another number is of what a layer made of the grid, not of its cells.
        if known == self._cells or not shapes.may_equal(x.shape[1:2], (cells,)):
            return self(x)
        self._check_within(known)
        return self._merged(x, self._table(sizes, self.dim or x.shape[-1]))

    def _check_within(self, sizes):
        """Raises if a cell of a grid of these sizes has no vector."""

    def embed(self, positions: Tensor, size: int) -> Tensor:
        return position_embedding.rows_of(self._table(self._cells, size), positions, self._count)

    def _table(self, sizes, size):
        """The vectors (positions, size) of a sequence of the grid of these sizes."""
        table = ops.reshape(self.vectors(sizes, size), (-1, size))
        if not self.prefix:
            return table
        learned = self._rows is not None
        prefix = self.embeddings[: self.prefix] if learned else ops.zeros((self.prefix, size))
        return ops.concatenate([ops.cast(prefix, table.dtype), table], axis=0)

    def _check_axes(self, x_shape):
        if len(x_shape) == 3:
            super()._check_axes(x_shape)
            if self._cells is None:
                raise ValueError(
                    "For a sequence, (batch, positions, features), `grid` must have the sizes of "
                    f"the grid that it is made of. Received: grid=None, x.shape={tuple(x_shape)}"
                )
            return
        axes = len(x_shape) - 2
        if axes < 2 or axes != len(self.grid or x_shape[2:]) or self.prefix or x_shape[-1] is None:
            raise ValueError(
                "`x` must be a sequence, (batch, positions, features), or a grid of as many axes "
                "as `grid` has, (batch, rows, columns, features), which has no `prefix`. Received: "
                f"x.shape={tuple(x_shape)}, grid={self.grid}, prefix={self.prefix}"
            )

    def _check_given(self, x, start_index, positions):
        begins = positions is None and isinstance(start_index, int) and start_index == 0
        if len(x.shape) == 3:
            super()._check_given(x, start_index, positions)
            if begins and backend.known_size(x.shape[1]) not in (None, self._count):
                raise ValueError(
                    f"A sequence of the grid {self._cells} with {self.prefix} positions before it "
                    f"has {self._count} positions; for others give `positions`. "
                    f"Received: x.shape={tuple(x.shape)}"
                )
        elif not begins:
            raise ValueError(
                "`start_index` and `positions` are of a sequence, (batch, positions, features). "
                f"Received: x.shape={tuple(x.shape)}"
            )

    def _embedded(self, x, start_index, positions):
        if len(x.shape) == 3:
            return super()._embedded(x, start_index, positions)
        return self.vectors(ops.shape(x)[1:-1], self.dim or x.shape[-1])


class SinCosGridEmbedding(GridEmbedding):
    r"""Sinusoidal positions on a grid (He et al. 2022, MAE; Beyer et al. 2022).

    A cell's vector has the sines and then the cosines of its column, and after them those of its
    row: `[PE[column], PE[row]]`, where `PE` is that of
    `SinCosPositionEmbedding(layout="half_split")` with half of the features. A grid of three axes
    has a third of the features for each, the last axis first. Computed in float32.

    Args:
        grid: rows and columns of the grid that a sequence is made of; None for inputs that are one.
        prefix: positions before the first cell, such as a class token. Nothing is added to them.
        max_wavelength: the longest wavelength, divided by 2π.
        **kwargs: `dim` and `merge_mode` as in `SinCosPositionEmbedding`; `name`, `dtype`,
            `trainable` of any Keras layer.

    Call arguments, results and errors are those of `SinCosPositionEmbedding`, for a sequence
    (B, prefix + rows · columns, D), row by row, or a grid (B, rows, columns, D) of any size,
    without a `prefix`. `positions` of a sequence are integers (T,) or (B, T) for a part of the
    cells, such as the patches that are not hidden; the first cell has the position `prefix`.

    >>> import keras, keras_attention
    >>> patches = keras.ops.zeros((2, 1 + 3 * 4, 16))
    >>> keras_attention.SinCosGridEmbedding((3, 4), prefix=1)(patches).shape
    (2, 13, 16)
    """

    def __init__(
        self,
        grid: tuple[int, ...] | None = None,
        prefix: int = 0,
        max_wavelength: float = 10000,
        dim: int | None = None,
        merge_mode: MergeMode = "add",
        **kwargs: Any,
    ):
        super().__init__(grid=grid, prefix=prefix, dim=dim, merge_mode=merge_mode, **kwargs)
        self.max_wavelength = shapes.check_positive("max_wavelength", max_wavelength)

    def vectors(self, sizes: tuple[Any, ...], size: int) -> Tensor:
        share, found = size // len(sizes), []
        for axis in reversed(range(len(sizes))):
            # What does not divide is of the last axis, the first of the features.
            features = size - share * (len(sizes) - 1) if axis == len(sizes) - 1 else share
            index = ops.arange(sizes[axis], dtype="int32")
            waves = position_embedding.sin_cos(
                index, features, self.max_wavelength, "half_split", self.compute_dtype
            )
            others = (*[1] * axis, sizes[axis], *[1] * (len(sizes) - 1 - axis), features)
            found.append(ops.broadcast_to(ops.reshape(waves, others), (*sizes, features)))
        return ops.concatenate(found, axis=-1)


class LearnedGridEmbedding(GridEmbedding):
    r"""Learned positions on a grid, for images of other sizes too (Dosovitskiy et al. 2021).

    A table has a vector for each cell of `grid`. For images of other sizes it is interpolated in
    float32 (section 3.2 of the paper): row r of h takes the vectors around
    `(r + 0.5) · rows / h - 0.5`, without smoothing where there are fewer.

    Args:
        grid: rows and columns of the table.
        prefix: positions before the first cell, such as a class token, with vectors of their own.
        size: rows and columns of the grid that sequences are made of; None for those of the table.
        interpolation: "cubic" (bicubic, with the kernel of PyTorch, as in ViT and DINOv2),
            "linear", or None: images have no more rows and columns than the table, and take its
            first. Then cells that pad an image at its right and bottom change nothing.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table,
            (prefix + rows · columns, D), which is that of `LearnedPositionEmbedding`.
        **kwargs: `dim` and `merge_mode` as in `SinCosPositionEmbedding`; `name`, `dtype`,
            `trainable` of any Keras layer.

    Call arguments, results and errors are those of `SinCosGridEmbedding`.

    >>> import keras, keras_attention
    >>> small = keras_attention.LearnedGridEmbedding((2, 2), prefix=1)
    >>> small.build((1, 5, 8))
    >>> large = keras_attention.LearnedGridEmbedding((2, 2), prefix=1, size=(3, 4))
    >>> large.build((1, 13, 8))
    >>> large.set_weights(small.get_weights())
    """

    def __init__(
        self,
        grid: tuple[int, ...],
        prefix: int = 0,
        size: tuple[int, ...] | None = None,
        interpolation: Interpolation | None = "cubic",
        dim: int | None = None,
        merge_mode: MergeMode = "add",
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(grid=grid, prefix=prefix, dim=dim, merge_mode=merge_mode, **kwargs)
        self.size = shapes.check_sizes("size", size, 1)
        choices = get_args(Interpolation)
        self.interpolation = shapes.check_choice("interpolation", interpolation, choices)
        if self.grid is None or len(self.size or self.grid) != len(self.grid):
            raise ValueError(
                "`grid` must have the sizes of a table, and `size` be None or as many. "
                f"Received: grid={grid}, size={size}"
            )
        self._rows = self._count
        self._keep_cells(self.size or self.grid)
        self._check_within(self._cells)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)

    def _check_within(self, sizes):
        known = [backend.known_size(size) for size in sizes]
        if self.interpolation is None and any(
            size is not None and size > cells for size, cells in zip(known, self.grid, strict=True)
        ):
            raise ValueError(
                "Without an `interpolation`, images may have no more rows and columns than the "
                f"`grid`. Received: grid={self.grid}, and a grid of {tuple(sizes)}"
            )

    def _check_axes(self, x_shape):
        super()._check_axes(x_shape)
        if len(x_shape) > 3:
            self._check_within(x_shape[1:-1])

    def vectors(self, sizes: tuple[Any, ...], size: int) -> Tensor:
        table = ops.reshape(self.embeddings[self.prefix :], (*self.grid, size))
        for axis, (source, target) in enumerate(zip(self.grid, sizes, strict=True)):
            if isinstance(target, int) and target == source:
                continue
            if self.interpolation is None:
                table = ops.take(table, ops.arange(target, dtype="int32"), axis=axis)
                continue
            weights = ops.cast(resizing(source, target, self.interpolation), table.dtype)
            # By numbers from the start: PyTorch's files of ONNX keep a negative one.
            last = len(self.grid)
            table = ops.einsum("ts,...s->...t", weights, ops.moveaxis(table, axis, last))
            table = ops.moveaxis(table, last, axis)
        return table
