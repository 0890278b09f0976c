"""The schedule of Vaswani et al. against its equation, and inside an optimizer that is saved."""

import keras
import numpy as np
import pytest

from keras_attention.schedules import InverseSquareRoot
from tests.arrays import numpy


def equation(step, dim, warmup, scale):
    return scale * dim**-0.5 * min(step**-0.5, step * warmup**-1.5)


@pytest.mark.parametrize(("dim", "warmup", "scale"), [(512, 4000, 1.0), (64, 10, 2.5), (7, 1, 0.1)])
def test_it_is_the_equation(dim, warmup, scale):
    schedule = InverseSquareRoot(dim, warmup, scale)
    steps = [1, 2, max(1, warmup - 1), warmup, warmup + 1, 10 * warmup, 1_000_000]
    found = [float(schedule(step)) for step in steps]
    expected = [equation(step, dim, warmup, scale) for step in steps]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert max(found) == found[steps.index(warmup)]
    assert float(schedule(0)) == found[0] > 0
    together = schedule(keras.ops.convert_to_tensor([steps, steps], dtype="int32"))
    np.testing.assert_allclose(numpy(together), [expected, expected], rtol=1e-6)
    assert keras.backend.standardize_dtype(together.dtype) == "float32"


def test_every_update_has_the_rate_of_its_step(tmp_path):
    """With a gradient of one, SGD's steps are the rates; the optimizer goes on after loading."""
    inputs = keras.Input((1,))
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
    model = keras.Model(inputs, outputs)
    schedule = InverseSquareRoot(4, 3, scale=0.5)
    # The loss of one row is its output times its target: its gradient is 1.
    jit = keras.backend.backend() == "jax"
    model.compile(keras.optimizers.SGD(schedule), "mean_absolute_error", jit_compile=jit)
    x, y = np.ones((1, 1), "float32"), np.full((1, 1), -100.0, "float32")

    def taken(model, steps):
        before = float(numpy(model.weights[0])[0, 0])
        model.fit(x, y, epochs=steps, verbose=0)
        return before - float(numpy(model.weights[0])[0, 0])

    rates = [equation(max(1, step), 4, 3, 0.5) for step in range(9)]
    np.testing.assert_allclose(taken(model, 5), sum(rates[:5]), rtol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(taken(loaded, 4), sum(rates[5:]), rtol=1e-5)
