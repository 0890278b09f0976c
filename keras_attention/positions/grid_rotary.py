"""Rotary positions on a grid: by rows and columns apart, or by both with learned frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import keras
import numpy as np
from keras import ops

from keras_attention import scores
from keras_attention.positions.base import Position, check_shared
from keras_attention.positions.rotary import Layout, Rotary, angles, paired, rotated_size
from keras_attention.sequences import shapes
from keras_attention.sequences.grid import Grid


class AxialRotary(Rotary):
    r"""score(i, j) = (R_i q)ᵀ (R_j k), which depends on the differences of rows and of columns.

    Axial rotary embedding (Fang et al. 2024, EVA-02; Heo et al. 2024): the rotary embedding of
    images. Of d features to rotate on a grid of n axes, each axis has d / n: by
    its coordinate c the pair i of them, i = 0 … d/(2n) − 1, is rotated by the angle
    `c · max_wavelength^(−2in / d)`. The first pairs are those of the first axis, the rows.
    Positions of the prefix are not rotated.

    Args:
        grid, prefix: as of `patterns.GridWindow`.
        **kwargs: those of `Rotary`: `max_wavelength`, which is 100 in Heo et al. 2024; `layout`,
            which is "interleaved" in EVA-02, and "half_split" in Qwen2-VL; `dim`, a multiple of
            twice the number of axes; `scaling="linear"` with `factor`, the grid's size to that in
            training, as in EVA-02.

    Raises:
        ValueError: a number or a name is not as described, the scaling depends on the length
            ("dynamic", "longrope"), or the number of features to rotate is no multiple of twice
            the number of axes, exceeds the features, or differs between sides.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> rotary = positions.AxialRotary((2, 3), layout="interleaved")
    >>> x = keras.ops.ones((1, 6, 1, 4))
    >>> rotated, _ = rotary.encode(x, x, keras.ops.arange(6), keras.ops.arange(6))
    >>> [round(float(value), 4) for value in rotated[0, 3, 0]]    # row 1, column 0
    [-0.3012, 1.3818, 1.0, 1.0]
    >>> layer = SelfAttention(4, 8, position=positions.AxialRotary((2, 3)))
    >>> layer(keras.random.normal((2, 6, 32))).shape
    (2, 6, 32)
    """

    counts = False

    def __init__(self, grid: Sequence[int], prefix: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.grid, self.prefix = Grid.of(grid, prefix)
        if self.needs_length:
            raise ValueError(
                "`scaling` of AxialRotary must not depend on the length. "
                f"Received: scaling={self.scaling!r}"
            )

    def _size(self, query_size, key_size):
        size = super()._size(query_size, key_size)
        check_axes(self, size)
        return size

    def _angles(self, positions, size, last):
        frequencies = self._frequencies(size // len(self.grid), None)
        numbers = Grid(self.grid, self.prefix).numbers(positions)
        found = [angles(along, frequencies) for along in numbers]
        return ops.concatenate(found, axis=-1)


def check_axes(position, size):
    """Raises unless the axes of a position's grid can share the `size` features."""
    if size % (2 * len(position.grid)):
        raise ValueError(
            f"{type(position).__name__} rotates features in pairs, as many for each axis of the "
            f"grid, so their number must be a multiple of {2 * len(position.grid)}. "
            f"Received: {size}"
        )


class MixedRotary(Position):
    r"""score(i, j) = (R_i q)ᵀ (R_j k), which depends on the differences of rows and of columns.

    RoPE-Mixed (Heo et al. 2024, section 3.2): `R_i` rotates the pair n of features of a head h by
    the angle `r_i · θ[h, 0, n] + c_i · θ[h, 1, n]`, for row r and column c, with learned θ. So a
    head can tell diagonals apart, which `AxialRotary` cannot. On a grid of more axes the angle is
    the sum over all. Positions of the prefix are not rotated.

    θ begins as `u · max_wavelength^(−2n / d)`, with a random unit vector u for each head and pair.
    The authors' code has two perpendicular directions for each head.

    Heads of queries that share a key share θ. Computed in float32 for every dtype of query and key
    (in float64 for float64), and rounded once.

    Args:
        grid, prefix: as of `patterns.GridWindow`.
        max_wavelength: the longest wavelength at the beginning, divided by 2π.
        dim: number d of rotated features, the first ones of each head, a multiple of twice the
            number of axes; None for all.
        layout: which features form a pair, "half_split" or "interleaved", as in `Rotary`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number or a name is not as described, the number of features to rotate is no
            multiple of twice the number of axes, exceeds the features, or differs between sides,
            or layers of different sizes share it.

    >>> import keras
    >>> from keras_attention import SelfAttention, positions
    >>> mixed = positions.MixedRotary((4, 6), prefix=1)
    >>> layer = SelfAttention(4, 8, position=mixed)
    >>> layer(keras.random.normal((2, 1 + 24, 32))).shape
    (2, 25, 32)
    >>> tuple(mixed.frequencies.shape)    # heads, axes, pairs
    (4, 2, 4)
    """

    # Rotating both vectors preserves their inner product.
    scores = (scores.Dot, scores.ScaledDot, scores.Cosine)
    encodes_alone = True
    counts = False

    def __init__(
        self,
        grid: Sequence[int],
        prefix: int = 0,
        max_wavelength: float = 10.0,
        dim: int | None = None,
        layout: Layout = "half_split",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.grid, self.prefix = Grid.of(grid, prefix)
        self.max_wavelength = shapes.check_number("max_wavelength", max_wavelength, above=1)
        self.dim = shapes.check_count("dim", dim, 2, optional=True)
        self.layout = shapes.check_choice("layout", layout, get_args(Layout))

    def build(self, query_shape, key_shape):
        size = rotated_size(self.dim, query_shape[-1], key_shape[-1])
        check_axes(self, size)
        self.frequencies = self.add_weight(
            name="frequencies",
            shape=(key_shape[2], len(self.grid), size // 2),
            initializer=self._first_frequencies,
        )

    def _first_frequencies(self, shape, dtype=None):
        directions = keras.initializers.RandomNormal(stddev=1.0)(shape, dtype=dtype)
        directions = directions / ops.norm(directions, axis=1, keepdims=True)
        pair = np.arange(shape[-1])
        return directions * ops.cast(self.max_wavelength ** (-pair / shape[-1]), directions.dtype)

    def encode(self, query, key, query_positions, key_positions):
        wide = shapes.accumulation_dtype(query, key)
        heads, _, pairs = self.frequencies.shape
        check_shared(self, heads, num_heads=key.shape[2])
        size = rotated_size(self.dim, query.shape[-1], key.shape[-1])
        check_shared(self, 2 * pairs, features=size)
        of_keys = ops.cast(self.frequencies, wide)
        of_queries = ops.repeat(of_keys, query.shape[2] // heads, axis=0)
        return (
            self._rotated(query, query_positions, of_queries),
            self._rotated(key, key_positions, of_keys),
        )

    def _rotated(self, x, positions, frequencies):
        """`x` (B, T, H, K) at positions (T,) or (B, T), by frequencies (H, axes, d/2)."""
        axes = Grid(self.grid, self.prefix).numbers(ops.cast(positions, frequencies.dtype))
        angles = ops.einsum("...a,han->...hn", ops.stack(axes, axis=-1), frequencies)
        cos, sin = ops.cos(angles), ops.sin(angles)
        size, wide = 2 * cos.shape[-1], ops.cast(x, cos.dtype)
        if self.layout == "half_split":
            first, second = wide[..., : size // 2], wide[..., size // 2 : size]
        else:
            first, second = wide[..., :size:2], wide[..., 1:size:2]
        # Not the backend's `rotate`, which has no gradient of the angles.
        turned = paired(first * cos - second * sin, first * sin + second * cos, self.layout)
        turned = ops.cast(turned, x.dtype)
        if size == x.shape[-1]:
            return turned
        return ops.concatenate([turned, x[..., size:]], axis=-1)
