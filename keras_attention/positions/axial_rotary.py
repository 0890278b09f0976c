"""`AxialRotary`: half of the pairs of features rotate by the row of a grid, half by the column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_attention import saving
from keras_attention.grid import Grid
from keras_attention.positions.rotary import Rotary, angles


@saving.register
class AxialRotary(Rotary):
    r"""score(i, j) = (R_i q)ᵀ (R_j k), which depends on the differences of rows and of columns.

    Axial rotary embedding (Fang et al. 2024, EVA-02; Heo et al. 2024): the rotary embedding of
    images. Of d features to rotate on a grid of n axes, each axis has d / n: by
    its coordinate c the pair i of them, i = 0 … d/(2n) − 1, is rotated by the angle
    `c · max_wavelength^(−2in / d)`. The first pairs are those of the first axis, the rows.
    Positions of the prefix are not rotated.

    Args:
        grid: (height, width) of the sequence in row-major order, or the sizes of more or fewer
            axes: (depth, height, width) of a video.
        prefix: the number of positions before the grid, such as class tokens.
        **kwargs: those of `Rotary`: `max_wavelength`, which is 100 in Heo et al. 2024; `layout`,
            which is "interleaved" in EVA-02, and "half_split" in Qwen2-VL; `dim`, a multiple of
            twice the number of axes; `scaling="linear"` with `factor`, the grid's size to that in
            training, as in EVA-02.

    Raises:
        ValueError: a number or a name is not as described, the scaling depends on the length
            ("dynamic", "longrope"), or the number of features to rotate is no multiple of twice
            the number of axes, exceeds the features, or differs between sides.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> rotary = positions.AxialRotary((2, 3), layout="interleaved")
    >>> x = keras.ops.ones((1, 6, 1, 4))
    >>> rotated, _ = rotary.encode(x, x, keras.ops.arange(6), keras.ops.arange(6))
    >>> [round(float(value), 4) for value in rotated[0, 3, 0]]    # row 1, column 0
    [-0.3012, 1.3818, 1.0, 1.0]
    >>> layer = keras_attention.SelfAttention(4, 8, position=positions.AxialRotary((2, 3)))
    >>> layer(keras.random.normal((2, 6, 32))).shape
    (2, 6, 32)
    """

    counts = False

    def __init__(self, grid: Sequence[int], prefix: int = 0, **kwargs: Any):
        cells = Grid.of(grid, prefix)
        super().__init__(**kwargs)
        if self.needs_length:
            raise ValueError(
                "`scaling` of AxialRotary must not depend on the length. "
                f"Received: scaling={self.scaling!r}"
            )
        self.grid, self.prefix = cells

    def _rotated_size(self, query_size, key_size):
        size = super()._rotated_size(query_size, key_size)
        check_axes(self, size)
        return size

    def _angles(self, positions, size, last):
        frequencies = self._frequencies(size // len(self.grid), None)
        numbers = Grid(self.grid, self.prefix).numbers(positions)
        found = [angles(along, frequencies) for along in numbers]
        return keras.ops.concatenate(found, axis=-1)


def check_axes(position, size):
    """Raises unless the axes of a position's grid can share the `size` features."""
    if size % (2 * len(position.grid)):
        raise ValueError(
            f"{type(position).__name__} rotates features in pairs, as many for each axis of the "
            f"grid, so their number must be a multiple of {2 * len(position.grid)}. "
            f"Received: {size}"
        )
