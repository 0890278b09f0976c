"""Overlapping windows of rows, of which biases by distance are made, and their gradient."""

import keras
import numpy as np
import pytest

from keras_attention.backend import backend
from tests.gradients import gradients

SIZES = [(1, 1), (1, 5), (5, 1), (7, 3), (6, 4), (4, 6), (12, 12), (16, 33)]


def by_definition(array, rows):
    columns = array.shape[1] - rows + 1
    starts = range(rows - 1, -1, -1)
    return np.stack([array[:, start : start + columns] for start in starts], axis=1)


@pytest.mark.parametrize("rows, columns", SIZES)
def test_windows_and_their_gradient(rows, columns):
    rng = np.random.default_rng(0)
    array = rng.normal(size=(3, rows + columns - 1)).astype("float32")
    weights = rng.normal(size=(3, rows, columns)).astype("float32")

    def windows(array):
        return backend.windows(array, rows, columns)

    found = keras.ops.convert_to_numpy(windows(keras.ops.convert_to_tensor(array)))
    np.testing.assert_array_equal(found, by_definition(array, rows))

    (gradient,) = gradients(
        lambda array: windows(array) * keras.ops.convert_to_tensor(weights), [array]
    )
    expected = np.zeros_like(array)
    for row in range(rows):
        expected[:, rows - 1 - row : rows - 1 - row + columns] += weights[:, row]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only its graphs have None")
def test_windows_of_unknown_sizes():
    import tensorflow as tf

    @tf.function(autograph=False)
    def windows(array, rows):
        return backend.windows(array, rows, tf.shape(array)[1] - rows + 1)

    array = np.arange(22.0, dtype="float32").reshape(2, 11)
    for rows in (1, 4, 11):
        found = windows(tf.constant(array), tf.constant(rows))
        np.testing.assert_array_equal(found, by_definition(array, rows))
