"""Absolute positions, added or concatenated to a sequence: sinusoidal or learned vectors."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core.hints import Constraint, Initializer, Positions, Regularizer, Tensor
from keras_attention.positions.rotary import Layout, angles
from keras_attention.sequences import inputs, masks, sequence, shapes

MergeMode = Literal["add", "concat", "none"]


class PositionEmbedding(saving.ConfigurableLayer, saved=False):
    """The base of both: computes each row's positions, and merges the vectors of `embed`."""

    # Vectors (..., T, size) for integer positions (..., T).
    embed: Callable[[Tensor, int], Tensor]
    # Whether positions in models count the real tokens of a row, so that padding changes nothing.
    counts = True
    # The rows of the table of learned vectors, and the number of positions; None without a table.
    _rows: int | None = None
    _count: Any = None
    _count_name = "max_length"

    def __init__(self, dim: int | None = None, merge_mode: MergeMode = "add", **kwargs: Any):
        super().__init__(**kwargs)
        self.dim = shapes.check_optional_count("dim", dim)
        self.merge_mode = shapes.check_choice("merge_mode", merge_mode, get_args(MergeMode))

    def build(self, x_shape, start_index_shape=None, positions_shape=None):
        self._check(x_shape)
        if self._rows is not None:
            # Read in float32 even in half precision, so that only the sum is rounded.
            shape = (self._rows, self.dim or x_shape[-1])
            self.embeddings = self._add_weight("embeddings", shape, autocast=False)

    def _check(self, x_shape):
        self._check_axes(x_shape)
        if self.merge_mode == "add" and self.dim not in (None, x_shape[-1]):
            raise ValueError(
                "With merge_mode='add', `dim` must be None or the number of features of `x`. "
                f"Received: dim={self.dim}, x.shape={tuple(x_shape)}"
            )

    def _check_axes(self, x_shape):
        shapes.check_sequence(x_shape)

    def call(
        self,
        x: Tensor,
        start_index: int | Tensor = 0,
        positions: Positions | None = None,
        segment_ids: Tensor | None = None,
    ) -> Tensor:
        positions = self._read(x, start_index, positions, segment_ids)
        return self._merged(x, self._embedded(x, start_index, positions))

    def _merged(self, x, embedding):
        """The result of a call, of vectors that broadcast to (B, …, size)."""
        if self.merge_mode == "add":
            # The sum is also computed in float32: in bfloat16 the position would be rounded first.
            wide = shapes.accumulation_dtype(x, embedding)
            return ops.cast(ops.cast(x, wide) + ops.cast(embedding, wide), self.compute_dtype)
        shape = (*ops.shape(x)[:-1], embedding.shape[-1])
        embedding = ops.broadcast_to(ops.cast(embedding, self.compute_dtype), shape)
        return embedding if self.merge_mode == "none" else ops.concatenate([x, embedding], axis=-1)

    def _embedded(self, x, start_index, positions):
        """Vectors that broadcast to (B, …, size), which are merged with `x` (B, …, D)."""
        if positions is None:
            positions = _from(start_index, ops.arange(ops.shape(x)[1], dtype="int32"))
        return self.embed(ops.cast(positions, "int32"), self.dim or x.shape[-1])

    def _read(self, x, start_index, positions, segment_ids):
        """The checked positions of a call in which `positions` may be a word; None for places."""
        word, mask = sequence.word(positions), masks.padding(x, None)
        if segment_ids is not None and word != "tokens":
            raise ValueError(
                "`segment_ids` number texts whose tokens are counted: pass positions='tokens'. "
                f"Received: segment_ids beside positions={positions!r}"
            )
        if word is not None:
            positions = None
        if word == "tokens" and self.counts:
            found = sequence.ranks(mask, inputs.integers("segment_ids", "x", segment_ids, x))
            _check_given(x, start_index, None)
            positions = found if found is None else _from(start_index, found)
        self._check_given(x, start_index, positions)
        return positions

    def _check_given(self, x, start_index, positions):
        """Rejects positions that do not fit `x` or the table, as far as they are known."""
        _check_given(x, start_index, positions)
        if self._count is None:
            return
        values = shapes.visible_values(start_index if positions is None else positions)
        known = values is not None and values.size
        first, last = (values.min(), values.max()) if known else (None, None)
        if positions is None:
            length = backend.known_size(x.shape[1])
            last = None if last is None or length is None else last + length - 1
            if last is None and length is not None and length > self._count:
                first, last = 0, length - 1
        if (first is not None and first < 0) or (last is not None and last >= self._count):
            raise ValueError(
                f"Positions must lie in [0, {self._count_name}={self._count}). Received positions "
                f"from {first} to {last}"
            )

    compute_mask = masks.passed_on

    def compute_output_shape(self, x_shape, start_index_shape=None, positions_shape=None):
        self._check(x_shape)
        own, size = x_shape[-1], self.dim or x_shape[-1]
        features = {"add": own, "concat": own + size, "none": size}
        return (*x_shape[:-1], features[self.merge_mode])

    def compute_output_spec(self, x, start_index=0, positions=None, segment_ids=None):
        shape = self.compute_output_shape(x.shape)
        self._read(x, start_index, positions, segment_ids)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


class SinCosPositionEmbedding(PositionEmbedding):
    r"""Sinusoidal positions of Vaswani et al. 2017, section 3.5.

    `PE[p, 2i] = sin(p / max_wavelength^(2i / dim))` and
    `PE[p, 2i+1] = cos(p / max_wavelength^(2i / dim))`: sines and cosines interleaved, or with
    layout="half_split" all sines before all cosines (Marian). Computed in float32 for every dtype
    policy, accurate to 1e-6 for all positions below 2^24; only the result is rounded to the compute
    dtype.

    Args:
        dim: features of the embedding; defaults to those of the input.
        merge_mode: "add" to the input, "concat" after its features, or "none" for the embedding
            alone.
        max_wavelength: the longest wavelength, divided by 2π.
        layout: "interleaved" or "half_split", the order of the features.
        shift: added to all positions (2 in M2M-100).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, T, D).
        start_index: position of the first element, an integer or one per row, (B,).
        positions: how elements are counted from `start_index` on: "places", by their index, which
            is the default, or "tokens", by their rank among those of the mask that `x` carries; or
            integers (T,) or (B, T) instead.
        segment_ids: integers (B, T) that number texts in a row, each of which "tokens" counts from
            its first; or None.

    Returns:
        (B, T, D), or (B, T, D + dim) for "concat", or (B, T, dim) for "none", carrying the mask
        of `x`.

    Raises:
        ValueError: an argument or a shape is not as described.
        TypeError: `start_index` or `positions` are not integers.

    >>> import keras, keras_attention
    >>> x = keras.ops.zeros((2, 3, 4))
    >>> embedding = keras_attention.SinCosPositionEmbedding()(x)
    >>> [round(float(value), 4) for value in embedding[0, 1]]
    [0.8415, 0.5403, 0.01, 0.9999]
    """

    def __init__(
        self,
        dim: int | None = None,
        merge_mode: MergeMode = "add",
        max_wavelength: float = 10000,
        layout: Layout = "interleaved",
        shift: int = 0,
        **kwargs: Any,
    ):
        super().__init__(dim=dim, merge_mode=merge_mode, **kwargs)
        self.shift = shapes.check_count("shift", shift, 0)
        self.max_wavelength = shapes.check_positive("max_wavelength", max_wavelength)
        self.layout = shapes.check_choice("layout", layout, get_args(Layout))

    def embed(self, positions: Tensor, size: int) -> Tensor:
        positions = positions + self.shift if self.shift else positions
        return sin_cos(positions, size, self.max_wavelength, self.layout, self.compute_dtype)


class LearnedPositionEmbedding(PositionEmbedding):
    """Learned positions: row `p` of a table of weights for position `p` (Gehring et al. 2017).

    Args:
        max_length: number of positions in the table.
        dim, merge_mode: as in `SinCosPositionEmbedding`.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments, results and errors are those of `SinCosPositionEmbedding`. Positions must be
    below `max_length`; one that is known only at run time cannot be checked, and outside the table
    gives a zero vector.

    >>> import keras, keras_attention
    >>> x = keras.ops.zeros((2, 3, 4))
    >>> keras_attention.LearnedPositionEmbedding(max_length=10)(x, start_index=7).shape
    (2, 3, 4)
    """

    def __init__(
        self,
        max_length: int,
        dim: int | None = None,
        merge_mode: MergeMode = "add",
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(dim=dim, merge_mode=merge_mode, **kwargs)
        self.max_length = self._rows = self._count = shapes.check_count("max_length", max_length)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)

    def embed(self, positions: Tensor, size: int) -> Tensor:
        return rows_of(self.embeddings, positions, self.max_length)


def _from(start_index, positions):
    """Positions (T,) or (B, T) from `start_index` on, an integer or one for each row."""
    start = ops.cast(start_index, "int32")
    return ops.add(start[:, None] if len(start.shape) == 1 else start, positions)


def sin_cos(
    positions: Tensor, size: int, max_wavelength: float, layout: Layout, dtype: str
) -> Tensor:
    """Sines and cosines (..., size) of integer positions (...), in float32 or float64."""
    pairs = (size + 1) // 2
    # In float64, so that the frequencies are as accurate as possible.
    frequencies = float(max_wavelength) ** (-2.0 * np.arange(pairs) / size)
    wide = shapes.full_precision(dtype)
    angle = angles(ops.cast(positions, wide), frequencies)
    if layout == "half_split":
        return ops.concatenate([ops.sin(angle), ops.cos(angle)[..., : size // 2]], axis=-1)
    waves = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)
    return ops.reshape(waves, (*ops.shape(positions), 2 * pairs))[..., :size]


def rows_of(table: Tensor, positions: Tensor, count: int) -> Tensor:
    """Rows (..., size) of a table of so many; zeros for positions outside of it."""
    vectors = ops.take(table, ops.clip(positions, 0, count - 1), axis=0)
    inside = ops.logical_and(positions >= 0, positions < count)
    return ops.where(inside[..., None], vectors, ops.zeros_like(vectors))


def _check_given(x, start_index, positions):
    """Rejects arrays that are not integers, or do not fit `x`, as far as its shape is known."""
    batch, length = map(backend.known_size, x.shape[:2])
    if positions is None:
        name, given, fitting = "start_index", start_index, [(), (batch,)]
        expected = "an integer, or one for each row of `x`, (batch,)"
    else:
        name, given, fitting = "positions", positions, [(length,), (batch, length), (1, length)]
        expected = "integers, (positions,) or (batch, positions) of `x`"
    array = given if shapes.is_array(given) else np.asarray(given)
    numpy = isinstance(array, (np.ndarray, np.generic))
    dtype = str(array.dtype) if numpy else keras.backend.standardize_dtype(array.dtype)
    if "int" not in dtype:
        raise TypeError(f"`{name}` must be {expected}. Received: {name} of dtype {dtype}")
    inputs.check_within(name, given, "int32")
    shape = tuple(map(backend.known_size, array.shape))
    if not any(shapes.may_equal(shape, other) for other in fitting):
        raise ValueError(
            f"`{name}` must be {expected}. Received: {name}.shape={shape}, x.shape={tuple(x.shape)}"
        )
