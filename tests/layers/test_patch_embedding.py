"""Patches of images: the equation, masks of pixels, formats, axes, and files."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from tests.arrays import numpy, random

B, H, W, C, D = 2, 4, 6, 3, 5
IMAGES = random(B, H, W, C)
# The second image is three rows of four pixels.
PIXELS = np.zeros((B, H, W), bool)
PIXELS[0], PIXELS[1, :3, :4] = True, True
PATCHES = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 0]], bool)


def made(patch_size=2, **kwargs):
    """A layer with a bias that is not zero."""
    return ka.PatchEmbedding(patch_size, D, bias_initializer="ones", **kwargs)


def expected(layer, images):
    """The equation, patch by patch, in float64."""
    kernel, bias = (w.astype("float64") for w in layer.get_weights())
    (p, q), found = layer.patch_size, []
    for row in range(0, images.shape[1], p):
        for column in range(0, images.shape[2], q):
            patch = images[:, row : row + p, column : column + q].reshape(len(images), -1)
            found.append(patch.astype("float64") @ kernel + bias)
    return np.stack(found, axis=1)


@pytest.mark.parametrize("patch_size", [2, (1, 3)])
def test_it_is_the_equation(patch_size):
    layer = made(patch_size)
    output = numpy(layer(IMAGES))
    np.testing.assert_allclose(output, expected(layer, IMAGES), rtol=1e-5, atol=1e-5)
    grid = made(patch_size, flatten=False)
    grid.build(IMAGES.shape)
    grid.set_weights(layer.get_weights())
    sizes = [n // p for n, p in zip((H, W), layer.patch_size, strict=True)]
    np.testing.assert_array_equal(numpy(grid(IMAGES)), output.reshape(B, *sizes, D))
    first = made(patch_size, data_format="channels_first")
    first.build((None, C, None, None))
    first.set_weights(layer.get_weights())
    np.testing.assert_array_equal(numpy(first(IMAGES.transpose(0, 3, 1, 2))), output)


def test_it_is_a_convolution_with_strides():
    layer = made()
    output = numpy(layer(IMAGES))
    convolution = keras.layers.Conv2D(D, 2, strides=2, data_format="channels_last")
    convolution.build(IMAGES.shape)
    kernel, bias = layer.get_weights()
    convolution.set_weights([kernel.reshape(2, 2, C, D), bias])
    found = numpy(convolution(IMAGES)).reshape(B, -1, D)
    np.testing.assert_allclose(output, found, rtol=1e-5, atol=1e-5)


def test_series_and_films():
    series, film = random(B, 8, C), random(B, 2, H, W, C)
    layer = made((4,))
    found = numpy(layer(series))
    kernel, bias = layer.get_weights()
    np.testing.assert_allclose(
        found, series.reshape(B, 2, -1) @ kernel + bias, rtol=1e-5, atol=1e-5
    )
    assert made((2, 2, 3))(film).shape == (B, 4, D)
    # Of one frame, a patch is that of an image.
    layer = made((1, 2, 2))
    found = numpy(layer(film))
    image = made()
    image.build(IMAGES.shape)
    image.set_weights(layer.get_weights())
    np.testing.assert_allclose(found[:, 6:], numpy(image(film[:, 1])), rtol=1e-5, atol=1e-5)


def test_sizes_that_are_not_known(tmp_path):
    # Images of sizes that are not known, and the mask that a model of layers carries.
    images = keras.Input((None, None, C))
    patches = made(flatten=False)(images)
    assert tuple(patches.shape) == (None, None, None, D)
    patches = ka.LearnedGridEmbedding((2, 2))(patches)
    output = keras.layers.Reshape((-1, D))(patches)
    output = ka.AttentionPooling()(output)
    model = keras.Model(images, [output, made()(images)])
    assert tuple(model.outputs[1].shape) == (None, None, D)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for size in ((4, 4), (4, 6)):
        given = IMAGES[:, : size[0], : size[1]]
        for one, other in zip(model(given), loaded.predict(given, verbose=0), strict=True):
            np.testing.assert_allclose(numpy(one), other, rtol=1e-5, atol=1e-5)
    assert made()(IMAGES[:0]).shape == (0, 6, D)


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_the_mask_of_a_model_reaches_later_layers(known, flatten, tmp_path):
    """Once handed on by Keras, with a batch, and perhaps sizes, that nobody knows."""
    sizes = (H, W) if known else (None, None)
    images, pixels = keras.Input((*sizes, C)), keras.Input(sizes, dtype="bool")
    layer = made(flatten=flatten)
    x = layer(images, mask=pixels)
    block = ka.TransformerBlock(8, 1)
    y = block(x) if flatten else keras.layers.Activation("relu")(x)
    model = keras.Model([images, pixels], [y, masks.implicit(y)])
    found, mask = model([IMAGES, PIXELS])
    np.testing.assert_array_equal(numpy(mask), PATCHES if flatten else PATCHES.reshape(B, 2, 3))
    if flatten:
        expected = numpy(block(layer(IMAGES, mask=PIXELS)))
        np.testing.assert_allclose(numpy(found), expected, rtol=1e-5, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one, other in zip(loaded([IMAGES, PIXELS]), (found, mask), strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))
