"""Positions on grids: the equation, the interpolation, other sizes, parts of a grid."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.layers.embeddings.grid_embedding import resizing
from tests.arrays import numpy, random
from tests.compiled import call
from tests.gradients import weight_gradients

ROWS, COLUMNS, D = 3, 4, 8
CELLS = random(2, ROWS * COLUMNS, D)


def sines(position, size):
    """Sines and then cosines, one by one, in float64."""
    angles = position / 10000.0 ** (2 * np.arange(size // 2) / size)
    return np.concatenate([np.sin(angles), np.cos(angles)])


def learned(x, grid=(ROWS, COLUMNS), seed=1, **kwargs):
    """A layer whose table is not small."""
    layer = ka.LearnedGridEmbedding(grid, **kwargs)
    layer.build(x.shape)
    layer.set_weights([random(*layer.embeddings.shape, seed=seed)])
    return layer


def test_sines_are_of_the_column_and_of_the_row():
    found = numpy(ka.SinCosGridEmbedding((ROWS, COLUMNS))(CELLS)) - CELLS
    expected = [
        np.concatenate([sines(column, D // 2), sines(row, D // 2)])
        for row in range(ROWS)
        for column in range(COLUMNS)
    ]
    np.testing.assert_allclose(found, np.stack([expected] * 2), rtol=1e-5, atol=1e-6)
    grid = ka.SinCosGridEmbedding(merge_mode="none", dim=D)
    alone = numpy(grid(CELLS.reshape(2, ROWS, COLUMNS, D)))
    np.testing.assert_allclose(alone.reshape(found.shape), found, rtol=1e-5, atol=1e-6)
    # Of one axis it is the sequence's.
    series = ka.SinCosGridEmbedding((12,), merge_mode="none", dim=D)(CELLS)
    expected = ka.SinCosPositionEmbedding(D, "none", layout="half_split")(CELLS)
    np.testing.assert_allclose(numpy(series), numpy(expected), rtol=1e-6)


def test_three_axes_share_the_features():
    movie = random(1, 2, ROWS, COLUMNS, 10)
    found = numpy(ka.SinCosGridEmbedding(merge_mode="none")(movie))[0]
    for t, row, column in ((1, 2, 3), (0, 1, 0)):
        expected = [sines(column, 4), sines(row, 3), sines(t, 3)]
        np.testing.assert_allclose(found[t, row, column, :4], expected[0], atol=1e-6)
        np.testing.assert_allclose(found[t, row, column, 4], np.sin(row), atol=1e-6)
        np.testing.assert_allclose(found[t, row, column, 7], np.sin(t), atol=1e-6)


def test_learned_vectors_are_those_of_the_cells():
    x = random(2, 2 + ROWS * COLUMNS, D)
    layer = learned(x, prefix=2)
    table = numpy(layer.embeddings)
    np.testing.assert_allclose(numpy(layer(x)), x + table, rtol=1e-6)
    sequence = ka.LearnedPositionEmbedding(14)
    sequence.build(x.shape)
    sequence.set_weights([table])
    np.testing.assert_allclose(numpy(layer(x)), numpy(sequence(x)), rtol=1e-6)
    # Some patches of each image, of any grid.
    part = np.array([[0, 3, 13], [1, 2, 7]])
    found = layer(x[:, :3], positions=part)
    np.testing.assert_allclose(numpy(found), x[:, :3] + table[part], rtol=1e-6)


@pytest.mark.parametrize("interpolation", ["cubic", "linear"])
@pytest.mark.parametrize("target", [3, 5, 12])
def test_interpolation_is_the_definition(interpolation, target):
    """Of a function of the distance to each cell, in float64, and exact for straight lines."""

    def kernel(x):
        x, a = np.abs(x), -0.75
        if interpolation == "linear":
            return np.maximum(1 - x, 0)
        near = (a + 2) * x**3 - (a + 3) * x**2 + 1
        far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    at = (np.arange(target) + 0.5) * 5 / target - 0.5
    # The values at the edges go on for ever.
    weights = kernel(at[:, None] - np.arange(-5, 10))
    weights[:, 5] += weights[:, :5].sum(axis=1)
    weights[:, 9] += weights[:, 10:].sum(axis=1)
    found = numpy(resizing(5, target, interpolation))
    np.testing.assert_allclose(found, weights[:, 5:10], atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-5)
    if target == 5:
        np.testing.assert_allclose(found, np.eye(5), atol=1e-6)


def test_other_sizes_of_sequences_and_grids():
    small = random(2, 1 + ROWS * COLUMNS, D)
    table = learned(small, prefix=1).get_weights()
    large = np.zeros((2, 1 + 6 * 5, D), "float32")
    layer = learned(large, prefix=1, size=(6, 5))
    layer.set_weights(table)
    found = numpy(layer(large))
    np.testing.assert_array_equal(found[:, 0], np.stack([table[0][0]] * 2))
    grid = learned(large[:, 1:].reshape(2, 6, 5, D))
    grid.set_weights([table[0][1:]])
    cells = numpy(grid(large[:, 1:].reshape(2, 6, 5, D)))
    np.testing.assert_allclose(found[:, 1:], cells.reshape(2, 30, D), atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_vectors_are_added_before_rounding(policy):
    dtype = policy.removeprefix("mixed_")
    x = keras.ops.cast(10 * random(2, 6, 5, D), dtype)
    for layer in (learned(x, dtype=policy), ka.SinCosGridEmbedding(dtype=policy)):
        found = layer(x)
        assert keras.backend.standardize_dtype(found.dtype) == dtype
        sizes = (6, 5)
        exact = numpy(keras.ops.cast(x, "float32")) + numpy(layer.vectors(sizes, D))
        unit = {"bfloat16": 2**-8, "float16": 2**-11}[dtype]
        error = np.abs(numpy(keras.ops.cast(found, "float32")) - exact)
        assert (error <= unit * np.abs(exact) + 1e-6).all()


def test_in_an_encoder_of_images():
    """As the embeddings of a model, whose table is trained by all cells of another size."""
    patches = keras.Sequential([ka.PatchEmbedding(2, D), ka.ClassToken()])
    positions = ka.LearnedGridEmbedding((2, 2), prefix=1, size=(3, 2))
    encoder = ka.Encoder([ka.TransformerBlock(8, 2)], ka.Embeddings(patches, positions))
    images = random(2, 6, 4, 1)
    encoder.build(images.shape)
    # A masked patch leaves the others where they are.
    kept = np.array([[1, 1, 0, 1, 0, 1, 1], [1] * 7], bool)
    vectors = numpy(call(positions, numpy(call(patches, images))))[:1, kept[0]]
    alone = numpy(call(ka.Encoder(encoder.blocks), vectors))
    found = numpy(call(encoder, images, mask=kept))
    np.testing.assert_allclose(found[:1, kept[0]], alone, rtol=1e-4, atol=1e-5)
    gradients, _ = weight_gradients(encoder, lambda x: keras.ops.square(encoder(x)), [images])
    (found,) = (
        gradient
        for variable, gradient in zip(encoder.trainable_variables, gradients, strict=True)
        if variable is positions.embeddings
    )
    assert (np.abs(found).max(axis=1) > 0).all()
