"""Patches of images, and merged ones: the equations, masks, axes, formats and files."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from tests.arrays import close, numpy, random, wide

B, H, W, C, D = 2, 4, 6, 3, 5
IMAGES = random(B, H, W, C)
# The second image is three rows of some pixels.
PIXELS = np.arange(H)[:, None] < np.reshape([H, 3], (B, 1, 1))
PIXELS = PIXELS & (np.arange(W) < np.reshape([W, 4], (B, 1, 1)))
PATCHES = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]], bool)


def patches(patch_size=2, **kwargs):
    """A layer with a bias that is not zero."""
    return ka.PatchEmbedding(patch_size, D, bias_initializer="ones", **kwargs)


def merging():
    """A layer whose norm is not the identity."""
    layer = ka.PatchMerging((H, W))
    layer.build((None, H * W, C))
    for n, variable in enumerate((layer.norm.gamma, layer.norm.beta)):
        variable.assign(variable + random(*variable.shape, seed=n))
    return layer


def like(layer, other, shape):
    """The layer, built, with the weights of another."""
    layer.build(shape)
    layer.set_weights(other.get_weights())
    return layer


def blocks(images, size):
    """The cells of each patch, in float64."""
    (p, q), images = size, images.astype("float64")
    for row in range(0, images.shape[1], p):
        for column in range(0, images.shape[2], q):
            yield images[:, row : row + p, column : column + q]


@pytest.mark.parametrize("patch_size", [2, (1, 3)])
def test_patches_are_the_equation(patch_size):
    layer = patches(patch_size)
    output = numpy(layer(IMAGES))
    kernel, bias = map(wide, layer.weights)
    expected = [x.reshape(B, -1) @ kernel + bias for x in blocks(IMAGES, layer.patch_size)]
    close(output, np.stack(expected, axis=1))
    grid = like(patches(patch_size, flatten=False), layer, IMAGES.shape)
    sizes = [n // p for n, p in zip((H, W), layer.patch_size, strict=True)]
    np.testing.assert_array_equal(numpy(grid(IMAGES)), output.reshape(B, *sizes, D))
    first = like(patches(patch_size, data_format="channels_first"), layer, (None, C, None, None))
    np.testing.assert_array_equal(numpy(first(IMAGES.transpose(0, 3, 1, 2))), output)
    p, q = layer.patch_size
    options = {"strides": (p, q), "data_format": "channels_last"}
    convolution = keras.layers.Conv2D(D, (p, q), **options)
    convolution.build(IMAGES.shape)
    convolution.set_weights([layer.get_weights()[0].reshape(p, q, C, D), layer.get_weights()[1]])
    close(numpy(convolution(IMAGES)).reshape(B, -1, D), output)


def test_merged_patches_are_the_equation():
    layer = merging()
    found = numpy(layer(IMAGES.reshape(B, H * W, C)))
    gamma, beta, kernel = map(wide, layer.weights)
    expected = []
    for cells in blocks(IMAGES, (2, 2)):
        group = cells.transpose(0, 2, 1, 3).reshape(B, -1)  # down each column
        group = group - group.mean(axis=-1, keepdims=True)
        group = group / np.sqrt(np.mean(group**2, axis=-1, keepdims=True) + 1e-5)
        expected.append((group * gamma + beta) @ kernel)
    close(found, np.stack(expected, axis=1))
    assert found.shape == (B, 6, 2 * C)
    grid = like(ka.PatchMerging(), layer, IMAGES.shape)
    np.testing.assert_array_equal(numpy(grid(IMAGES)), found.reshape(B, 2, 3, 2 * C))


def test_series_and_movies():
    series, movie = random(B, 8, C), random(B, 2, H, W, C)
    layer = patches((4,))
    found = numpy(layer(series))
    kernel, bias = layer.get_weights()
    close(found, series.reshape(B, 2, -1) @ kernel + bias)
    assert patches((2, 2, 3))(movie).shape == (B, 4, D)
    assert ka.PatchMerging((8,), dim=5)(series).shape == (B, 4, 5)
    # Of one frame, a patch is that of an image.
    layer = patches((1, 2, 2))
    found = numpy(layer(movie))
    close(found[:, 6:], like(patches(), layer, IMAGES.shape)(movie[:, 1]))
    layer = ka.PatchMerging(size=(1, 2, 2))
    found = numpy(layer(movie))
    close(found[:, 1], like(ka.PatchMerging(), layer, IMAGES.shape)(movie[:, 1]))


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
    assert merging()(random(0, H * W, C)).shape == (0, 6, 2 * C)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("known", [False, True])
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
