"""Files of every release load for ever: `golden/<version>/`, written once on each backend.

See `golden/write.py` for what is in them. Every run reads one file of each case, another on each
backend; the slow part reads all others.
"""

import functools
import importlib.util
import inspect
import itertools
import json
import lzma
import tarfile
import zipfile

import keras
import numpy as np
import pytest

from keras_attention import saving
from tests.golden.cases import ANSWERS, ARCHIVES, FILTER, MODEL, NEW, WEIGHTS, names
from tests.golden.masked import HOLES, PATH, masked
from tests.golden.write import answers, cases, inputs_of, write

BACKENDS = ("jax", "tensorflow", "torch")
# Beside the largest output. Backends round sums in their own order.
TOLERANCES = {"bfloat16": 0.03, "float16": 4e-3, "float32": 2e-5, "int32": 0}
# Where that of the dtype is too strict.
TOLERANCE = {
    # The last layer gives float32 of what was computed in half precision.
    "classifier-mixed_bfloat16": 0.03,
    "classifier-mixed_float16": 4e-3,
    # A number that is rounded the other way moves the output by about one in 127.
    "int8": 0.02,
    "int8-classifier": 0.02,
    # 0.1.0 counted the padding of a row in its length, on which these angles depend.
    "position-rotary-dynamic": 1e-3,
}
# 0.2.0 counted masked tokens between others: 0.3.0 gives other outputs for such rows.
COUNTED_HOLES = ("linformer", "linformer-all", "linformer-shared", "nystrom-all", "retention")
# Unrolled, Keras on JAX repeats the output before a masked step, whatever `zero_output_for_mask`.
REPEATED = ("rnn-options", "jax")
# Each case of a release, with the archives that it is in.
RELEASED = {name: [p for p in ARCHIVES if name in names(p)] for name in names(ARCHIVES[-1])}


def every_file():
    """Each case with each archive, all but one of them slow."""
    shift = BACKENDS.index(keras.backend.backend())
    for number, (name, archives) in enumerate(RELEASED.items()):
        for copy, path in enumerate(archives):
            # Keras stores the optimizers of PyTorch as classes of their own, which need it.
            needs_torch = name in ("compiled", "compiled-options") and path.name.startswith("torch")
            marks = []
            if needs_torch:
                without = importlib.util.find_spec("torch") is None
                marks.append(pytest.mark.skipif(without, reason="PyTorch's optimizer needs it."))
            elif copy != (number + shift) % len(archives):
                marks.append(pytest.mark.slow)
            elif number % 3:
                # The three releases of each are read by one backend or another.
                marks.append(pytest.mark.ci)
            file = f"{name}-{path.parent.name}-{path.name.split('.')[0]}"
            yield pytest.param(path, name, id=file, marks=marks)


@pytest.fixture(scope="module", name="unpacked")
def _unpacked(tmp_path_factory):
    """The folder of an archive's files."""
    folders = {}

    def folder_of(path):
        if path not in folders:
            folders[path] = tmp_path_factory.mktemp("golden")
            with tarfile.open(path) as archive:
                archive.extractall(folders[path], **FILTER)
        return folders[path]

    return folder_of


@functools.cache
def masked_answers():
    """What 0.2.0 gives for rows with masked tokens anywhere: by case, the outputs."""
    found = {}
    with lzma.open(PATH) as file, np.load(file) as stored:
        for key in stored:
            found.setdefault(key.rsplit("/", 1)[0], []).append(stored[key])
    return found


def check(name, model, inputs, expected, holes=True):
    """Compares outputs at real tokens; without `holes`, neither such rows nor losses."""
    arrays, dtypes, masks = answers(name, model, inputs)
    for index, (array, dtype, mask) in enumerate(zip(arrays, dtypes, masks, strict=True)):
        # What a block gives for padding means nothing, and may be another in each version.
        real = np.ones(array.shape[:1], bool) if mask is None else mask
        if not holes:
            if not array.ndim:
                continue
            real = real.copy()
            real[HOLES] = False
        array, known = array[real], expected[index][real]
        tolerance = TOLERANCE.get(name, TOLERANCES[dtype])
        np.testing.assert_allclose(
            array, known, rtol=0, atol=tolerance * np.abs(known).max(), err_msg=str(index)
        )
    assert len(arrays) == len(expected)
    return dtypes


@pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 15),
    reason="Keras 3.15 wrote the files: older ones have other arguments and activity losses",
)
@pytest.mark.parametrize(("path", "name"), every_file())
def test_files_of_every_release_load(path, name, unpacked, freeze):
    file = str(unpacked(path) / name)
    # Files keep the names of operations: those of a new process are the ones that they had.
    keras.utils.clear_session(free_memory=False)
    if name.startswith("int8"):
        freeze()
    with np.load(file + ANSWERS) as stored:
        inputs = inputs_of(stored)
        known = [stored[f"output_{n}"] for n in range(len(stored["dtypes"]))]
        model = keras.saving.load_model(file + MODEL)
        assert check(name, model, inputs, known) == list(stored["dtypes"])
        rows = masked(inputs)
        backends = keras.backend.backend(), path.name.split(".")[0]
        if rows is not None and REPEATED not in [(name, backend) for backend in backends]:
            found = [stored[key] for key in stored if key.startswith("masked_")]
            holes = bool(found) or name not in COUNTED_HOLES
            check(name, model, rows, found or masked_answers()[name], holes)
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape))
    model.load_weights(file + WEIGHTS)
    check(name, model, inputs, known)


def test_every_release_has_an_archive_of_each_backend_with_the_cases_of_those_before():
    folders = dict.fromkeys(path.parent for path in ARCHIVES)
    assert "0.1.0" in {folder.name for folder in folders}
    assert [f / f"{b}.tar.xz" for f in folders for b in BACKENDS] == ARCHIVES
    for path in ARCHIVES:
        with tarfile.open(path) as archive:
            found = set(archive.getnames())
        assert found == {name + x for name in names(path) for x in (MODEL, WEIGHTS, ANSWERS)}
    for one, other in itertools.pairwise(ARCHIVES):
        assert set(names(one)) <= set(names(other))
        assert one.parent != other.parent or names(one) == names(other)


@pytest.mark.ci
def test_cases_of_the_next_release_can_be_written(tmp_path):
    """The new ones, and one in twenty of those that were written before."""
    assert not NEW.keys() & RELEASED.keys()
    for number, (name, make, inputs) in enumerate(cases()):
        if name in NEW or number % 20 == 0:
            write(name, make, inputs, tmp_path)


def test_the_golden_files_stay_small():
    assert sum(path.stat().st_size for path in ARCHIVES) < 3e6


def configs(value):
    """The name and the configuration of every object in that of a model."""
    if isinstance(value, dict):
        if "class_name" in value and isinstance(value.get("config"), dict):
            yield value.get("registered_name") or value["class_name"], value["config"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from configs(item)


@pytest.fixture(scope="module", name="values")
def _values(unpacked):
    """Of each registered class, its arguments in each golden model, with their values as JSON.

    Of cases that are in no release yet, in the models that the next one will write.
    """
    found = {}
    for name in (*RELEASED, *NEW):
        if name in RELEASED:
            with zipfile.ZipFile(unpacked(RELEASED[name][-1]) / (name + MODEL)) as file:
                config = json.loads(file.read("config.json"))
        else:
            config = json.loads(json.dumps(keras.saving.serialize_keras_object(NEW[name][0]())))
        for registered, arguments in configs(config):
            former = saving.former_names(REGISTERED.get(registered))
            found.setdefault(registered, []).append(
                {former.get(k, k): json.dumps(v, sort_keys=True) for k, v in arguments.items()}
            )
    return found


REGISTERED = {
    name: cls
    for name, cls in keras.saving.get_custom_objects().items()
    if name.startswith(f"{saving.PACKAGE}>") and isinstance(cls, type)
}


# Rules of generation are no parts of models, and the arguments of `PooledNorm` are Keras's.
OTHERS = ("Constraints", "LengthDecay", "Penalty", "PooledNorm")
# `Hard("reinforce")` is chosen by `HardAttention`, whose own argument is in its configuration.
# `AxialRotary` has no "longrope".
NEVER_SAVED = {
    (f"{saving.PACKAGE}>Hard", "gradient"),
    (f"{saving.PACKAGE}>AxialRotary", "short_factors"),
    (f"{saving.PACKAGE}>AxialRotary", "long_factors"),
}


def defaults(cls, argument):
    """The default of an argument as JSON, in a set, which is empty if it has none."""
    for owner in cls.__mro__:
        own = inspect.signature(owner.__init__).parameters.get(argument)
        if own is not None:
            return set() if own.default is own.empty else {json.dumps(own.default, default=str)}
    return set()


@pytest.mark.parametrize("name", [name for name in REGISTERED if name.split(">")[1] not in OTHERS])
def test_every_class_and_argument_has_a_case(name, values):
    assert name in values, f"{name} needs a case in tests/golden/cases.py"
    cls = REGISTERED[name]
    for argument in saving.constructor_arguments(cls, stop=saving.ConfigurableLayer):
        if (name, argument) in NEVER_SAVED:
            continue
        default = defaults(cls, argument)
        found = {given[argument] for given in values[name] if argument in given}
        if any(argument not in given for given in values[name]):
            # A file of a release before the argument, which has its default.
            found |= default
        assert len(found) >= 1 + len(default), (
            f"`{argument}` of {name} needs cases in tests/golden/cases.py: one with its default, "
            f"if it has one, and one with another value. Found: {sorted(found)}"
        )
