"""Inside layers of a user's own, one in another: the same outputs, and again when loaded."""

import keras
import numpy as np
import pytest

from tests.arrays import numpy
from tests.compiled import compiled
from tests.conformance import outputs_of
from tests.inside import OwnLayer
from tests.layers.conformance_cases import CASES


@pytest.mark.ci
def test_the_same_outputs_and_again_when_loaded(tmp_path):
    """A case in each branch of one model; another model calls the same layers by themselves."""
    inputs, outputs, given, direct_inputs, direct_outputs = [], [], [], [], []
    for number, case in enumerate(CASES):
        layer = case.make()
        symbols = case.symbols(3 if number % 2 else None, lengths=number % 4 < 2)
        outputs.append(outputs_of(OwnLayer(OwnLayer(layer, case.listed))(*symbols))[0])
        inputs += symbols
        symbols = case.symbols(lengths=False)
        direct_outputs.append(outputs_of(case.call(layer, symbols))[0])
        direct_inputs += symbols
        given += case.arrays()
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    models = keras.Model(direct_inputs, direct_outputs), model, loaded
    found = [compiled(lambda *x, model=model: model(list(x)), *given) for model in models]
    for case, expected, *others in zip(CASES, *found, strict=True):
        for other in others:
            np.testing.assert_allclose(numpy(other), numpy(expected), atol=1e-5, err_msg=str(case))
