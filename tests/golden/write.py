"""Writes the golden files of a release, on the backend that runs: `python -m tests.golden.write`.

One archive for each backend, `tests/golden/<version>/<backend>.tar.xz`, with three files of each
case: the whole model, its weights, and what it was called with and gave, with `masked` rows too. It
is written once, by the released code, and never again: `tests/test_golden.py` loads it for ever.
"""

import io
import pathlib
import tarfile
import tempfile
import zipfile

import keras
import numpy as np

import keras_attention
from keras_attention.sequences import masks
from tests.golden.cases import (
    ANSWERS,
    ARCHIVES,
    FILTER,
    FOLDER,
    MODEL,
    NEW,
    RUN,
    WEIGHTS,
    names,
    outputs,
)
from tests.golden.masked import masked


def randomized(model):
    """The model with random weights that are the same on every backend; not if it is quantized."""
    rng = np.random.default_rng(1)
    if "int8" not in {weight.dtype for weight in model.weights}:
        for weight in model.weights:
            weight.assign(rng.normal(scale=0.4, size=weight.shape))
    return model


def answers(name, model, inputs):
    """What the model gives for `inputs`: arrays in at least float32, names of dtypes, and masks."""
    found = keras.tree.flatten(RUN.get(name, outputs)(model, list(inputs)))
    carried = [masks.implicit(x) for x in found]
    dtypes = [keras.backend.standardize_dtype(getattr(x, "dtype", "float32")) for x in found]
    arrays = [
        keras.ops.convert_to_numpy(keras.ops.cast(x, "float32") if "float16" in dtype else x)
        for x, dtype in zip(found, dtypes, strict=True)
    ]
    return arrays, dtypes, [m if m is None else keras.ops.convert_to_numpy(m) for m in carried]


def inputs_of(stored):
    """What a case of a release is called with, from the file of its answers."""
    return [stored[key] for key in stored if key.startswith("input_")]


def cases():
    """The names of all cases, with a function that makes the model and its inputs."""
    path = [path for path in ARCHIVES if path.name.startswith(keras.backend.backend())][-1]
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(path) as archive:
            archive.extractall(folder, **FILTER)
        for name in names(path):
            file = f"{folder}/{name}"
            with np.load(file + ANSWERS) as stored:
                inputs = inputs_of(stored)
            yield name, lambda file=file: keras.saving.load_model(file + MODEL), inputs
    for name, case in NEW.items():
        yield name, *case


def write(name, make, inputs, folder):
    """The three files of one case, in `folder`."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    model = randomized(make())
    arrays, dtypes, _ = answers(name, model, inputs)
    rows = masked(inputs)
    of_rows = [] if rows is None else answers(name, model, rows)[0]
    for array in arrays + of_rows:
        # A model that gives nothing, or the same whatever its weights, would prove nothing.
        if not np.isfinite(array).all() or not array.any():
            raise ValueError(f"{name}: outputs must be finite and not all 0. Received: {array}")
    model.save(folder / f"{name}{MODEL}")
    model.save_weights(folder / f"{name}{WEIGHTS}")
    np.savez(
        folder / f"{name}{ANSWERS}",
        dtypes=np.array(dtypes),
        **{f"input_{i}": array for i, array in enumerate(inputs)},
        **{f"output_{i}": array for i, array in enumerate(arrays)},
        **{f"masked_{i}": array for i, array in enumerate(of_rows)},
    )


def _packed(files, path):
    """One archive of `files`. Those of one kind are together, so that they compress well."""
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for file in sorted(files, key=lambda file: (file.suffix, file.name)):
            data = file.read_bytes()
            if zipfile.is_zipfile(file):
                data = _stored(data)
            info = tarfile.TarInfo(file.name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def _stored(data):
    """A zip file with its members as they are, which compress better together."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name))
    return packed.getvalue()


def main():
    version = keras_attention.__version__
    if not version.replace(".", "").isdigit():
        raise SystemExit(f"{version} is no release: set the version in version.py first.")
    path = FOLDER / version / f"{keras.backend.backend()}.tar.xz"
    if path.exists():
        raise SystemExit(f"{path} exists. What a release wrote is never written again.")
    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, make, inputs in cases():
            write(name, make, inputs, folder)
        _packed(folder.iterdir(), path)
        count = len(list(folder.glob(f"*{MODEL}")))
    print(f"{count} cases, {path.stat().st_size / 1024:.0f} kB: {path}")


if __name__ == "__main__":
    main()
