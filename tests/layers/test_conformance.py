"""Every public layer: its configuration, its `.h5` files, and its training in a model."""

import keras
import numpy as np
import pytest

from keras_attention.core import parts
from tests.arrays import numpy
from tests.conformance import alone, outputs_of
from tests.layers.conformance_cases import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
def test_a_name_and_a_dtype_are_in_the_config(case):
    named = case.make(name="given", dtype="mixed_bfloat16", trainable=False)
    again = case.layer.from_config(named.get_config())
    assert again.name == "given" and not again.trainable
    assert again.dtype_policy.name == "mixed_bfloat16"


@every_case
def test_h5_files(case, tmp_path):
    """Saved with a part frozen: the format orders trained weights before the others."""
    path = tmp_path / "model.h5"
    layer, symbols = case.make(), case.symbols()
    model = keras.Model(alone(symbols), case.call(layer, symbols))
    made = [weight.trainable for weight in model.weights]
    inner = [part for _, part in parts.inside(layer) if part.weights]
    for part in inner[len(inner) // 2 :][:1]:
        part.trainable = False
        assert [weight.trainable for weight in model.weights] != made
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.uniform(0.5, 1.0, weight.shape))
    model.save(path)
    again = keras.models.load_model(path, compile=False)
    assert [w.trainable for w in again.weights] == [w.trainable for w in model.weights]
    for ours, other in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(other))


@pytest.mark.ci
@every_case
def test_training_in_float16(case):
    """With Keras's scaled losses, of which a gradient that is not finite would lower the scale."""
    layer, symbols, arrays = case.make(dtype="mixed_float16"), case.symbols(), case.arrays()
    output = outputs_of(case.call(layer, symbols))[0]
    model = keras.Model(alone(symbols), keras.layers.Dense(2, dtype="mixed_float16")(output))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), 2.0**10)
    # As a graph only where a step without one would be compiled piece by piece.
    eagerly = keras.backend.backend() != "jax"
    model.compile(optimizer, "mse", run_eagerly=eagerly, jit_compile=not eagerly)
    target = np.random.default_rng(1).normal(size=model(alone(arrays)).shape)
    before = [numpy(weight) for weight in model.trainable_weights]
    for _ in range(2):
        assert np.isfinite(model.train_on_batch(alone(arrays), target))
    assert float(numpy(optimizer.dynamic_scale)) == 2.0**10, "a gradient was not finite"
    for weight, old in zip(model.trainable_weights, before, strict=True):
        after = numpy(weight)
        assert np.isfinite(after).all(), weight.path
        if not weight.path.endswith("key/bias"):
            assert np.abs(after - old).max() > 0, f"{weight.path} did not move"
