"""What every test starts from, and the one check that tests of several slots share."""

import keras
import numpy as np
import pytest

import keras_attention


@pytest.fixture(autouse=True)
def fixed_seed():
    """Weights and dropout are drawn alike in every run, whichever tests run before."""
    keras.utils.set_random_seed(0)


@pytest.fixture
def check_in_every_layer(tmp_path):
    """Checks slots of a user's own, each in three layers: they train, save and load.

    Takes a slot's name and functions that make what to put there, anew for each layer. Returns, for
    each function, the three slots as they were loaded from the file.
    """

    def check(name, *makers):
        x = 2 * np.random.default_rng(0).normal(size=(3, 5, 8)).astype("float32")
        target = np.random.default_rng(1).normal(size=(3, 5, 8)).astype("float32")
        # All in one model, since compiling takes most of the time.
        layers = [
            layer
            for make in makers
            for layer in (
                keras_attention.Attention(2, 4, **{name: make()}),
                keras_attention.MultiHeadAttention(2, 4, **{name: make()}),
                keras_attention.TransformerBlock(16, 2, **{name: make()}),
            )
        ]
        symbol = keras.Input((None, 8))
        model = keras.Model(symbol, keras.layers.add([layer(symbol) for layer in layers]))
        before = [np.array(keras.ops.convert_to_numpy(v)) for v in model.trainable_variables]
        # Compiling as a whole is slow on TensorFlow and PyTorch, and not doing so on JAX.
        on_jax = keras.config.backend() == "jax"
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=on_jax)
        model.fit(x, target, verbose=0)
        for variable, old in zip(model.trainable_variables, before, strict=True):
            # A bias of all keys shifts the scores of a query alike, which softmax cannot see.
            if not variable.path.endswith("key/bias"):
                new = keras.ops.convert_to_numpy(variable)
                assert np.abs(new - old).max() > 0, f"{variable.path} was not trained"

        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        outputs = [keras.ops.convert_to_numpy(m(x)) for m in (model, loaded)]
        assert np.isfinite(outputs[0]).all()
        np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-6, atol=1e-6)
        slots = [getattr(loaded.get_layer(layer.name), name) for layer in layers]
        return [slots[first : first + 3] for first in range(0, len(slots), 3)]

    return check
