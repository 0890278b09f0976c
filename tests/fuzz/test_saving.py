"""Every layer with any of its arguments: the config, and a file, give the layer back."""

import copy
import dataclasses
import json
import tempfile

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.arrays import numpy
from tests.conformance import outputs_of
from tests.fuzz import campaign
from tests.fuzz.configurations import Random, Short
from tests.layers.conformance_cases import CASES

# Each argument has a value other than its default.
ONCE = {str(case): case for case in CASES if case.first}


@dataclasses.dataclass(frozen=True, repr=False)
class File(Short):
    """A layer, which of its arguments are given, and whether a model of it is saved."""

    layer: str = "Attention"
    given: frozenset = frozenset()
    policy: str = "float32"
    to_file: bool = True
    seed: int = 0


def files_of(name):
    arguments = sorted(ONCE[name].other_arguments)
    some = st.frozensets(st.sampled_from(arguments)) if arguments else st.just(frozenset())
    return st.builds(
        File,
        layer=st.just(name),
        given=some,
        policy=st.sampled_from(["float32"] * 3 + ["mixed_bfloat16"]),
        to_file=st.sampled_from([True, False]),
        seed=st.integers(0, 2**16),
    )


FILES = st.sampled_from(list(ONCE)).flatmap(files_of)


def check(file):
    case, random = ONCE[file.layer], Random(file.seed)
    # Slots of its own: they are built for one layer.
    arguments = {name: copy.deepcopy(case.other_arguments[name]) for name in file.given}
    try:
        layer = case.make(dtype=file.policy, **arguments)
        symbols = case.symbols(lengths=False)
        output = outputs_of(case.call(layer, symbols))
        # What a model learns of lengths only when it is called.
        outputs_of(case.call(layer, case.arrays(file.seed)))
    except (ValueError, TypeError):
        # Values that do not go together, or not with these inputs.
        hypothesis.reject()
    config = json.loads(json.dumps(layer.get_config()))
    again = type(layer).from_config(config)
    assert json.loads(json.dumps(again.get_config())) == config
    if not file.to_file:
        return
    model = keras.Model(symbols, output)
    for variable in model.trainable_variables:
        variable.assign(variable + 0.1 * random.normal(*variable.shape))
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.saving.load_model(f"{folder}/model.keras")
    assert len(loaded.variables) == len(model.variables)
    arrays = case.arrays(file.seed)
    for found, expected in zip(outputs_of(loaded(arrays)), outputs_of(model(arrays)), strict=True):
        np.testing.assert_array_equal(
            *(numpy(keras.ops.cast(x, "float32")) for x in (found, expected))
        )


@campaign.few(tensorflow=15, jax=5, torch=20)
@hypothesis.given(FILES)
def test_saving(file):
    check(file)


@pytest.mark.slow
def test_saving_for_long():
    campaign.many(check, FILES)
