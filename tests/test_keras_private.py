"""What the package uses of Keras's private parts, where no layer shows that it works."""

import keras
import numpy as np
import pytest

from keras_attention.core import keras_private


def test_variables_are_read_as_they_are_stored():
    class Reads(keras.layers.Layer):
        def build(self, shape):
            self.weight = self.add_weight(shape=(1,))

        def call(self, x):
            self.seen = [keras.ops.convert_to_tensor(self.weight).dtype]
            with keras_private.uncast_variables():
                self.seen.append(keras.ops.convert_to_tensor(self.weight).dtype)
            return x

    layer = Reads(dtype="mixed_float16")
    layer(keras.ops.ones((1, 1)))
    assert [keras.backend.standardize_dtype(x) for x in layer.seen] == ["float16", "float32"]


def test_the_layers_inside_a_layer_and_a_model_are_listed():
    inner = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    outer = keras.Sequential([keras.Input((1,)), inner])
    assert keras_private.sublayers(outer, recursive=False).count(inner) == 1
    assert inner.layers[0] not in keras_private.sublayers(outer, recursive=False)
    assert inner.layers[0] in keras_private.sublayers(outer)
    assert outer not in keras_private.sublayers(outer)


def test_variables_get_their_first_values_from_elsewhere():
    layer = keras.layers.Dense(2, kernel_initializer="ones")
    with keras_private.first_values() as give:
        layer.build((None, 3))
        give(layer.kernel, lambda shape, dtype: keras.ops.full(shape, 5.0, dtype=dtype))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer.kernel), np.full((3, 2), 5.0))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer.bias), np.zeros(2))


def test_variables_of_a_layer_that_failed_get_none():
    layer = keras.layers.Dense(2)
    with pytest.raises(ZeroDivisionError), keras_private.first_values():
        layer.build((None, 3))
        raise ZeroDivisionError
    other = keras.layers.Dense(2)
    with keras.StatelessScope():
        other.build((None, 3))
    assert keras.ops.convert_to_numpy(other.kernel).shape == (3, 2)
