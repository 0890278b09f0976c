"""What the package uses of Keras's private parts is there, and does what it is used for."""

import ast
import importlib
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_attention.core import keras_private

SOURCE = Path(keras_private.__file__).read_text(encoding="utf-8")
IMPORTS = [
    (node.module, alias.name)
    for node in ast.walk(ast.parse(SOURCE))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
]


@pytest.mark.parametrize("module, name", IMPORTS)
def test_keras_still_has(module, name):
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        pytest.fail(
            f"Keras {keras.__version__} has moved {module}.{name}: keras_private.py says what it "
            "is used for and what else was tried"
        )


def test_the_parser_sees_the_imports():
    assert ("keras.src.random.seed_generator", "draw_seed") in IMPORTS


def test_masks_are_read_and_written_as_keras_does():
    x = keras.ops.ones((2, 3, 4))
    assert keras_private.get_keras_mask(x) is None
    mask = keras.ops.ones((2, 3), "bool")
    keras_private.set_keras_mask(x, mask)
    assert keras_private.get_keras_mask(x) is mask
    ids = keras.ops.convert_to_tensor([[1, 0]])
    carried = keras_private.get_keras_mask(keras.layers.Embedding(2, 3, mask_zero=True)(ids))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(carried), [[True, False]])


def test_a_seed_gives_two_numbers_and_a_generator_others_each_time():
    fixed = [keras.ops.convert_to_numpy(keras_private.draw_seed(3)) for _ in range(2)]
    assert fixed[0].shape == (2,) and (fixed[0] == fixed[1]).all()
    generator = keras.random.SeedGenerator(3)
    drawn = [keras.ops.convert_to_numpy(keras_private.draw_seed(generator)) for _ in range(2)]
    assert (drawn[0] != drawn[1]).any()


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


def test_saving_a_model_is_noticed(tmp_path):
    class Notices(keras.layers.Layer):
        def call(self, x):
            return x

        def get_config(self):
            noticed.append(keras_private.saving_a_model())
            return super().get_config()

    noticed = []
    x = keras.Input((2,))
    keras.Model(x, Notices()(x)).save(tmp_path / "model.keras")
    Notices().get_config()
    assert any(noticed[:-1]) and not noticed[-1]


def test_inputs_arrive_as_they_are():
    class Reads(keras.layers.Layer):
        def call(self, x):
            self.seen = x
            return x

    layer, given = Reads(dtype="mixed_bfloat16"), keras.ops.ones((1, 1), "float32")
    layer(given)
    assert keras.backend.standardize_dtype(layer.seen.dtype) == "bfloat16"
    keras_private.keep_inputs_as_they_are(layer)
    layer(given)
    assert layer.seen is given


def test_the_layers_inside_a_layer_and_a_model_are_listed():
    inner = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    outer = keras.Sequential([keras.Input((1,)), inner])
    assert keras_private.sublayers(outer, recursive=False).count(inner) == 1
    assert inner.layers[0] not in keras_private.sublayers(outer, recursive=False)
    assert inner.layers[0] in keras_private.sublayers(outer)
    assert outer not in keras_private.sublayers(outer)


def test_operations_of_a_model_can_be_replaced():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.ops.relu(keras.layers.Dense(3, name="dense")(inputs)))
    names = []

    def named(operation):
        names.append(operation.name)
        return operation

    x = keras.ops.ones((1, 2))
    output = keras_private.run_operations(model, [x], named)
    np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (output, model(x))), rtol=1e-6)
    assert names[-2] == "dense"


def test_an_rnn_asks_cells_of_keras_own_class_to_prepare():
    asked = []

    class Cell(keras_private.DropoutRNNCell, keras.layers.Layer):
        state_size = output_size = 2
        dropout = recurrent_dropout = 0.0

        def get_dropout_mask(self, step_input):
            asked.append("inputs")

        def get_recurrent_dropout_mask(self, states):
            asked.append("states")

        def call(self, inputs, states, training=False):
            return inputs, states

    keras.layers.RNN(Cell())(keras.ops.ones((1, 3, 2)))
    assert asked == ["inputs", "states"]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's alone")
def test_tensors_are_made_where_keras_puts_them():
    assert str(keras_private.torch_device()) == str(keras.ops.ones(1).device.type)


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
