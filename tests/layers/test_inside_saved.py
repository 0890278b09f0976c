"""Inside a user's own layers and models: trained, saved, and loaded in a fresh process."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from tests import inside
from tests.arrays import numpy
from tests.conformance import outputs_of
from tests.layers.conformance_cases import CASES


@pytest.mark.ci
def test_trained_saved_and_loaded_in_a_fresh_process(tmp_path):
    """A case in each branch of one model, each in another way and of other sizes.

    Another model calls the same layers by themselves.
    """
    inputs, outputs, names, given = [], [], [], []
    direct_inputs, direct_outputs, direct_given = [], [], []
    for number, case in enumerate(CASES):
        layer, way = case.make(), inside.way_of(case, number)
        symbols = inside.symbols(case, way, *inside.SIZES[number // 2 % 4])
        outputs.append(outputs_of(inside.WAYS[way](layer, case.listed)(*symbols))[0])
        inputs += symbols
        given += inside.arrays(case, way)
        names.append(f"{case} in {way}")
        symbols = case.symbols(lengths=False)
        direct_outputs.append(outputs_of(case.call(layer, symbols))[0])
        direct_inputs += symbols
        direct_given += case.arrays()
    model, direct = keras.Model(inputs, outputs), keras.Model(direct_inputs, direct_outputs)

    rng = np.random.default_rng(1)
    # A number for each feature: from one for all of them, a norm at the end has a gradient of 0.
    targets = [rng.normal(size=(3, *[1] * (len(x.shape) - 2), x.shape[-1])) for x in outputs]
    weights = model.trainable_weights
    before = [numpy(weight) for weight in weights]
    # As a graph only where a step without one would be compiled piece by piece.
    eagerly = keras.config.backend() != "jax"
    model.compile(keras.optimizers.SGD(0.1), Distance(), run_eagerly=eagerly)
    assert np.isfinite(model.train_on_batch(given, targets)).all()
    for weight, old in zip(weights, before, strict=True):
        # A bias of the keys shifts all scores of a query alike, which no softmax can see.
        if not weight.path.endswith("key/bias"):
            assert np.abs(numpy(weight) - old).max() > 0, f"{weight.path} did not change"

    found = inside.called(model, given)
    expected = inside.called(direct, direct_given)
    for name, output, own in zip(names, found, expected, strict=True):
        output = output[:, 0] if name.endswith("distributed") else output
        np.testing.assert_allclose(output, own, atol=1e-5, err_msg=name)

    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "given.npz", *given)
    subprocess.run([sys.executable, "-m", "tests.inside", tmp_path], check=True)
    with np.load(tmp_path / "found.npz") as file:
        for name, key, output in zip(names, file.files, found, strict=True):
            np.testing.assert_allclose(file[key], output, atol=1e-6, err_msg=f"{name}, loaded")


class Distance(keras.losses.Loss):
    """Of all numbers of an output from those of one position."""

    def call(self, y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_pred - y_true))
