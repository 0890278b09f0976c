"""Every public layer in a model: compiled, trained, saved and loaded."""

import subprocess
import sys

import numpy as np
import pytest

from tests import conformance
from tests.arrays import numpy
from tests.compiled import JIT_MODES, SLOW_JIT_MODES
from tests.conformance import outputs_of
from tests.layers.conformance_cases import CASES, Nearer

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.mark.parametrize(
    ("number", "case"), [pytest.param(n, case, id=str(case)) for n, case in enumerate(CASES)]
)
def test_compiled_is_eager(number, case):
    conformance.check_compiled_is_eager(case, JIT_MODES[number % len(JIT_MODES)])


@every_case
@pytest.mark.parametrize("jit_compile", SLOW_JIT_MODES)
def test_one_training_step(case, jit_compile):
    conformance.check_one_training_step(case, jit_compile)


@pytest.mark.ci
@every_case
def test_training_in_float16(case):
    conformance.check_training_in_float16(case)


LOADER = """
import pathlib, sys
import keras_attention
import keras, numpy as np
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.keras")):
    model = keras.saving.load_model(path)
    saved = np.load(path.with_suffix(".npz"))
    inputs = [saved[f"input_{i}"] for i in range(len(model.inputs))]
    outputs = model(inputs if len(inputs) > 1 else inputs[0])
    outputs = keras.tree.flatten(outputs)
    for i, output in enumerate(outputs):
        output = keras.ops.convert_to_numpy(output)
        np.testing.assert_allclose(output, saved[f"output_{i}"], rtol=1e-5, atol=1e-6)
    print("loaded", path.name)
"""


@pytest.mark.ci
def test_saved_models_load_in_a_fresh_process(tmp_path):
    names = []
    for index, case in enumerate(CASES):
        if isinstance(case.arguments.get("position"), Nearer):
            continue  # The class is this file's own, which the other process does not import.
        model, arrays = case.model(scores=case.returns_scores), case.arrays()
        rng = np.random.default_rng(5)
        model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
        outputs = outputs_of(model(conformance.alone(arrays)))
        path = tmp_path / f"{index:02}-{case}.keras"
        model.save(path)
        np.savez(
            path.with_suffix(".npz"),
            **{f"input_{i}": array for i, array in enumerate(arrays)},
            **{f"output_{i}": numpy(output) for i, output in enumerate(outputs)},
        )
        names.append(path.name)
    process = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert process.stdout.split("\n")[:-1] == [f"loaded {name}" for name in names]
