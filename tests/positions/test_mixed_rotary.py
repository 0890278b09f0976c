"""`MixedRotary`: the equation in float64, and shifts of the grid."""

import keras
import numpy as np
import pytest

from keras_attention import positions
from tests.arrays import numpy, random

GRID, PREFIX, H, G, K = (3, 4), 2, 4, 2, 8
TOKENS = 12


def built(grid=GRID, prefix=0, heads=H, groups=H, **kwargs):
    position = positions.MixedRotary(grid, prefix, **kwargs)
    position.build((1, None, heads, K), (1, None, groups, K))
    return position


@pytest.mark.parametrize(
    "layout, dim, prefix, groups",
    [("half_split", None, 0, H), ("interleaved", 4, PREFIX, G), ("half_split", 4, 1, 1)],
)
def test_rotation_is_that_of_the_equation(layout, dim, prefix, groups):
    position = built(prefix=prefix, groups=groups, layout=layout, dim=dim)
    length, size = TOKENS + prefix, dim or K
    query, key = random(2, length, H, K), random(2, length, groups, K, seed=1)
    theta = numpy(position.frequencies).astype("float64")
    assert theta.shape == (groups, 2, size // 2)
    lengths = 10.0 ** (-2 * np.arange(size // 2) / size)
    np.testing.assert_allclose(
        np.linalg.norm(theta, axis=1), np.tile(lengths, (groups, 1)), rtol=1e-5
    )
    at = np.zeros((length, 2))
    at[prefix:] = np.stack(np.unravel_index(np.arange(TOKENS), GRID), axis=1)
    found = position.encode(query, key, np.arange(length), np.arange(length))
    for x, turned, heads in ((query, found[0], H), (key, found[1], groups)):
        angles = np.einsum("ta,han->thn", at, np.repeat(theta, heads // groups, axis=0))
        x, half = numpy(x).astype("float64"), size // 2
        first = np.arange(half) if layout == "half_split" else np.arange(0, size, 2)
        second = first + (half if layout == "half_split" else 1)
        turn = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
        expected = x.copy()
        expected[..., first], expected[..., second] = turn.real, turn.imag
        np.testing.assert_allclose(numpy(turned), expected, atol=1e-5)


@pytest.mark.parametrize("shift", [(1, 0), (0, 3), (4, 2)])
def test_shifting_both_changes_no_score(shift):
    """Of any two cells: the score depends on their offset, and another offset has another."""
    position = built((8, 9))
    query, key = (random(1, TOKENS, H, K, seed=n) for n in range(2))
    rows, columns = np.unravel_index(np.arange(TOKENS), GRID)

    def scores(by):
        at = [np.ravel_multi_index((rows + r, columns + c), (8, 9)) for r, c in by]
        return numpy(keras.ops.einsum("bthk,bshk->bhts", *position.encode(query, key, *at)))

    np.testing.assert_allclose(scores([shift, shift]), scores([(0, 0)] * 2), atol=2e-5)
    assert np.abs(scores([shift, (0, 0)]) - scores([(0, 0)] * 2)).max() > 0.1
