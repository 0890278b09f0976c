"""Patches of images, and merged ones: the equations, masks, axes, formats and files."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from tests.arrays import built, close, numpy, random, wide

B, H, W, C, D = 2, 4, 6, 3, 5
IMAGES = random(B, H, W, C)
# The second image is three rows of some pixels.
PIXELS = np.arange(H)[:, None] < np.reshape([H, 3], (B, 1, 1))
PIXELS = PIXELS & (np.arange(W) < np.reshape([W, 4], (B, 1, 1)))
PATCHES = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]], bool)


def patches(patch_size=2, **kwargs):
    """A layer with a bias that is not zero."""
    return ka.PatchEmbedding(patch_size, D, bias_initializer="ones", **kwargs)


def like(layer, other, shape):
    """The layer, built, with the weights of another."""
    layer.build(shape)
    layer.set_weights(other.get_weights())
    return layer


def cells(x, size, order=1):
    """The cells of each patch (B, …, cells · C), in float64: the last axis changes fastest."""
    axes = len(size)
    parts = [n for whole, p in zip(x.shape[1:-1], size, strict=True) for n in (whole // p, p)]
    x = x.astype("float64").reshape(B, *parts, C)
    within = range(2, 2 * axes + 1, 2)[::order]
    x = x.transpose(0, *range(1, 2 * axes, 2), *within, 2 * axes + 1)
    return x.reshape(*x.shape[: axes + 1], -1)


SERIES, MOVIE = random(B, 8, C), random(B, 2, H, W, C)


@pytest.mark.parametrize(
    ("x", "size"), [(IMAGES, (2, 2)), (IMAGES, (1, 3)), (SERIES, (4,)), (MOVIE, (2, 2, 3))]
)
def test_patches_are_the_equation(x, size):
    layer = patches(size[0] if size == (2, 2) else size)
    output = numpy(layer(x))
    kernel, bias = map(wide, layer.weights)
    expected = cells(x, size) @ kernel + bias
    close(output, expected.reshape(B, -1, D))
    grid = like(patches(size, flatten=False), layer, x.shape)
    close(grid(x), expected)
    first = patches(size, data_format="channels_first")
    first = like(first, layer, (None, C, *[None] * len(size)))
    np.testing.assert_array_equal(numpy(first(np.moveaxis(x, -1, 1))), output)


@pytest.mark.parametrize(
    ("x", "size", "dim"), [(IMAGES, (2, 2), None), (SERIES, (8,), 5), (MOVIE, (1, 2, 2), None)]
)
def test_merged_patches_are_the_equation(x, size, dim):
    layer = built(ka.PatchMerging(size=size, dim=dim), x.shape)
    gamma, beta, kernel = map(wide, layer.weights)
    group = cells(x, size, -1)  # down each column
    group = group - group.mean(axis=-1, keepdims=True)
    group = group / np.sqrt(np.mean(group**2, axis=-1, keepdims=True) + 1e-5)
    expected = (group * gamma + beta) @ kernel
    assert expected.shape[-1] == (dim or 2 * C)
    close(layer(x), expected)
    flat, grid = x.reshape(B, -1, C), x.shape[1:-1]
    flatly = like(ka.PatchMerging(grid, dim, size), layer, flat.shape)
    close(flatly(flat), expected.reshape(B, -1, kernel.shape[-1]))


def loaded(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


def test_sizes_that_are_not_known(tmp_path):
    images = keras.Input((None, None, C))
    grid = patches(flatten=False)(images)
    assert tuple(grid.shape) == (None, None, None, D)
    merged = ka.PatchMerging(size=(1, 2))(ka.LearnedGridEmbedding((2, 2))(grid))
    assert tuple(merged.shape) == (None, None, None, 2 * D)
    output = ka.AttentionPooling()(keras.layers.Reshape((-1, 2 * D))(merged))
    model = keras.Model(images, [output, patches()(images)])
    assert tuple(model.outputs[1].shape) == (None, None, D)
    again = loaded(model, tmp_path)
    for width in (4, 8):
        given = random(B, 4, width, C)
        for one, other in zip(model(given), again.predict(given, verbose=0), strict=True):
            close(one, other)
    assert patches()(IMAGES[:0]).shape == (0, 6, D)
    assert ka.PatchMerging((H, W))(random(0, H * W, C)).shape == (0, 6, 2 * C)


@pytest.mark.parametrize(("known", "flatten"), [(False, True), (True, False)])
def test_the_mask_of_a_model_reaches_later_layers(known, flatten, tmp_path):
    """Once handed on by Keras, with a batch, and perhaps sizes, that nobody knows."""
    sizes = (H, W) if known else (None, None)
    images, pixels = keras.Input((*sizes, C)), keras.Input(sizes, dtype="bool")
    layer, block = patches(flatten=flatten), ka.TransformerBlock(8, 1)
    of_cells = ka.PatchMerging((H, W) if flatten else None)
    cells, mask = images, pixels
    if flatten:
        cells, mask = (keras.layers.Reshape((-1, *x.shape[3:]))(x) for x in (images, pixels))
    relu = keras.layers.Activation("relu")
    x = layer(images, mask=pixels)
    outputs = [block(x) if flatten else relu(x), relu(of_cells(cells, mask=mask))]
    model = keras.Model([images, pixels], [*outputs, *map(masks.implicit, outputs)])
    found = list(map(numpy, model([IMAGES, PIXELS])))
    # What has some of its pixels is there.
    shape = (B, 6) if flatten else (B, 2, 3)
    for mask in found[2:]:
        np.testing.assert_array_equal(mask, PATCHES.reshape(shape))
    eager = layer(IMAGES, mask=PIXELS)
    close(found[0], block(eager) if flatten else relu(eager))
    cells = (B, H * W) if flatten else (B, H, W)
    eager = of_cells(IMAGES.reshape(*cells, C), mask=PIXELS.reshape(cells))
    close(found[1], relu(eager))
    for one, other in zip(loaded(model, tmp_path)([IMAGES, PIXELS]), found, strict=True):
        np.testing.assert_array_equal(numpy(one), other)
