"""Merged patches: the equation, masks, axes, half precision, gradients and files."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from tests.arrays import numpy, random

B, H, W, D = 2, 4, 6, 3
GRID = random(B, H, W, D)
# The second image is three rows of two cells.
CELLS = np.zeros((B, H, W), bool)
CELLS[0], CELLS[1, :3, :2] = True, True
GROUPS = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 0, 1, 0, 0]], bool)


def made(grid=(H, W), **kwargs):
    """A layer whose norm is not the identity."""
    layer = ka.PatchMerging(grid, **kwargs)
    layer.build((None, H * W, D) if grid else (None, H, W, D))
    for n, variable in enumerate((layer.norm.gamma, layer.norm.beta)):
        variable.assign(variable + random(*variable.shape, seed=n))
    return layer


def expected(layer, grid):
    """The equation, group by group, in float64."""
    gamma, beta, kernel = (numpy(w).astype("float64") for w in layer.weights)
    grid, found = grid.astype("float64"), []
    for r in range(0, grid.shape[1], 2):
        for c in range(0, grid.shape[2], 2):
            cells = [grid[:, r + i, c + j] for i, j in ((0, 0), (1, 0), (0, 1), (1, 1))]
            group = np.concatenate(cells, axis=-1)
            group = group - group.mean(axis=-1, keepdims=True)
            group = group / np.sqrt(np.mean(group**2, axis=-1, keepdims=True) + 1e-5)
            found.append((group * gamma + beta) @ kernel)
    return np.stack(found, axis=1)


def test_it_is_the_equation():
    layer = made()
    found = numpy(layer(GRID.reshape(B, H * W, D)))
    np.testing.assert_allclose(found, expected(layer, GRID), rtol=1e-5, atol=1e-5)
    grid = made(None)
    grid.set_weights(layer.get_weights())
    assert found.shape == (B, 6, 2 * D)
    np.testing.assert_array_equal(numpy(grid(GRID)), found.reshape(B, 2, 3, 2 * D))


def test_axes_of_series_and_films():
    film = random(B, 3, H, W, D)
    layer = ka.PatchMerging(size=(1, 2, 2))
    found = numpy(layer(film))
    image = made(None)
    image.set_weights(layer.get_weights())
    np.testing.assert_allclose(found[:, 1], numpy(image(film[:, 1])), rtol=1e-5, atol=1e-5)
    assert ka.PatchMerging((8,), dim=5)(random(B, 8, D)).shape == (B, 4, 5)


def test_sizes_that_are_not_known(tmp_path):
    # A grid of unknown sizes, as a convolution gives it.
    images = keras.Input((None, None, D))
    merged = ka.PatchMerging(dim=5)(images)
    assert tuple(merged.shape) == (None, None, None, 5)
    output = ka.PatchMerging((2, 3), size=(2, 1))(keras.layers.Reshape((6, 5))(merged))
    assert tuple(output.shape) == (None, 3, 10)
    model = keras.Model(images, output)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(model(GRID)), loaded.predict(GRID, verbose=0), atol=1e-5)
    assert made()(random(0, H * W, D)).shape == (0, 6, 2 * D)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_the_mask_of_a_model_reaches_later_layers(known, sequence, tmp_path):
    sizes = ((H * W,) if known else (None,)) if sequence else (H, W) if known else (None, None)
    cells, mask = keras.Input((*sizes, D)), keras.Input(sizes, dtype="bool")
    layer = ka.PatchMerging((H, W) if sequence else None)
    y = keras.layers.Activation("relu")(layer(cells, mask=mask))
    model = keras.Model([cells, mask], [y, masks.implicit(y)])
    shape = (B, H * W) if sequence else (B, H, W)
    given = [GRID.reshape(*shape, D), CELLS.reshape(shape)]
    found = [numpy(array) for array in model(given)]
    np.testing.assert_array_equal(found[1], GROUPS if sequence else GROUPS.reshape(B, 2, 3))
    eager = np.maximum(numpy(layer(given[0], mask=given[1])), 0)
    np.testing.assert_allclose(found[0], eager, rtol=1e-5, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one, other in zip(loaded(given), found, strict=True):
        np.testing.assert_array_equal(numpy(one), other)
