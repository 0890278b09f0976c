"""`MixedRotary`: pairs of features rotate by rows and columns together, by learned frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention import saving, scores, shapes
from keras_attention.grid import Grid
from keras_attention.kinds import keep
from keras_attention.positions.axial_rotary import check_axes
from keras_attention.positions.base import Position, check_heads
from keras_attention.positions.rotary import Layout, paired, rotated_size


@saving.register
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
        grid: (height, width) of the sequence in row-major order, or the sizes of more or fewer
            axes: (depth, height, width) of a video.
        prefix: the number of positions before the grid, such as class tokens.
        max_wavelength: the longest wavelength at the beginning, divided by 2π.
        dim: number d of rotated features, the first ones of each head, a multiple of twice the
            number of axes; None for all.
        layout: which features form a pair, "half_split" or "interleaved", as in `Rotary`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number or a name is not as described, the number of features to rotate is no
            multiple of twice the number of axes, exceeds the features, or differs between sides,
            or layers of different sizes share it.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> mixed = positions.MixedRotary((4, 6), prefix=1)
    >>> layer = keras_attention.SelfAttention(4, 8, position=mixed)
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
        keep(self, locals())
        self.grid, self.prefix = Grid.of(grid, prefix)
        self.max_wavelength = shapes.check_number("max_wavelength", max_wavelength, above=1)
        self.dim = shapes.check_count("dim", dim, 2, optional=True)

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
        check_heads(self, heads, key.shape[2])
        size = rotated_size(self.dim, query.shape[-1], key.shape[-1])
        shapes.check_same("Features of layers that share it", built=2 * pairs, received=size)
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
