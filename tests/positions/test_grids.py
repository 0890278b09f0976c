"""Positions on a grid: `GridRelativeBias` and `AxialRotary`, against their equations in float64."""

import keras
import numpy as np
import pytest

from keras_attention import SelfAttention, positions
from tests.arrays import numpy, random
from tests.definition import rotated

GRID, PREFIX, H, K = (3, 4), 2, 2, 8
TOKENS = 12


def offset_row(position, i, j):
    """The row of the table for tokens at positions i and j, as Swin and BEiT number them."""
    n, last = position.prefix, np.prod([2 * size - 1 for size in position.size])
    if i < n or j < n:
        return last + (2 if i < n and j < n else 0 if i < n else 1)
    row = 0
    at = zip(np.unravel_index(i - n, GRID), np.unravel_index(j - n, GRID), strict=True)
    for size, (a, b) in zip(position.size, at, strict=True):
        row = row * (2 * size - 1) + min(max(a - b, 1 - size), size - 1) + size - 1
    return row


@pytest.mark.parametrize("size, prefix, rows", [(None, 0, 35), (2, 0, 9), ((2, 3), PREFIX, 18)])
def test_bias_is_that_of_the_offset(size, prefix, rows):
    layer = SelfAttention(H, K, position=positions.GridRelativeBias(GRID, size, prefix))
    x = random(2, TOKENS + prefix, 5)
    _, weights = layer(x, return_attention_scores=True)
    table = np.random.default_rng(1).normal(size=(rows, H)).astype("float32")
    layer.position.embeddings.assign(table)
    _, changed = layer(x, return_attention_scores=True)
    length = TOKENS + prefix
    found = np.log(numpy(changed)) - np.log(numpy(weights))
    bias = [[table[offset_row(layer.position, i, j)] for j in range(length)] for i in range(length)]
    expected = np.moveaxis(bias, 2, 0)
    # The table was uniform, and softmax knows differences alone.
    np.testing.assert_allclose(
        found - found[..., :1], np.broadcast_to(expected - expected[..., :1], found.shape), atol=0.1
    )


@pytest.mark.parametrize(
    "layout, dim, prefix",
    [("half_split", None, 0), ("interleaved", None, PREFIX), ("half_split", 4, 1)],
)
def test_axial_rotation_is_that_of_each_coordinate(layout, dim, prefix):
    position = positions.AxialRotary(GRID, prefix, layout=layout, dim=dim, max_wavelength=100)
    x = random(1, TOKENS + prefix, H, K)
    at = keras.ops.arange(TOKENS + prefix)
    found, _ = position.encode(x, x, at, at)
    x, size = numpy(x), dim or K
    expected = x.copy()
    # The features of the rows' pairs, and those of the columns'.
    half = np.arange(size) % (size // 2) < size // 4
    of_rows = half if layout == "half_split" else np.arange(size) < size // 2
    for features, axis in ((of_rows, 0), (~of_rows, 1)):
        where = np.flatnonzero(features)
        along = np.concatenate(
            [np.zeros(prefix, int), np.unravel_index(np.arange(TOKENS), GRID)[axis]]
        )
        expected[..., where] = rotated(
            x[..., where], along[None], along.max(), layout, wavelength=100
        )
    np.testing.assert_allclose(numpy(found), expected, atol=1e-5)


def test_axial_rotary_divides_coordinates_by_a_factor():
    x, at = random(1, TOKENS, H, K), keras.ops.arange(TOKENS)
    wide = positions.AxialRotary((6, 8), scaling="linear", factor=2.0)
    once = positions.AxialRotary((3, 4))
    every_second = (at // 4) * 2 * 8 + at % 4 * 2
    np.testing.assert_allclose(
        numpy(wide.encode(x, x, every_second, every_second)[0]),
        numpy(once.encode(x, x, at, at)[0]),
        atol=1e-5,
    )
