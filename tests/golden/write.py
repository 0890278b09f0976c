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
from keras_attention import masks
from tests.golden.cases import CASES
from tests.golden.masked import masked

FOLDER = pathlib.Path(__file__).parent
# What a file is named by: `<case>.keras` is the model.
MODEL, WEIGHTS, ANSWERS = ".keras", ".weights.h5", ".npz"


def made(case, seed):
    """The model of a case, with random weights that are the same on every backend."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(seed)
    model = case.make()
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(rng.normal(scale=0.4, size=weight.shape))
    if case.change is not None:
        case.change(model)
    return model


def answers(case, model, inputs):
    """What the model gives for `inputs`: arrays in at least float32, names of dtypes, and masks."""
    found = keras.tree.flatten(case.run(model, list(inputs)))
    carried = [masks.implicit(x) for x in found]
    dtypes = [keras.backend.standardize_dtype(getattr(x, "dtype", "float32")) for x in found]
    arrays = [
        keras.ops.convert_to_numpy(keras.ops.cast(x, "float32") if "float16" in dtype else x)
        for x, dtype in zip(found, dtypes, strict=True)
    ]
    return arrays, dtypes, [m if m is None else keras.ops.convert_to_numpy(m) for m in carried]


def write(name, case, folder):
    """The three files of one case, in `folder`."""
    model = made(case, seed=1)
    arrays, dtypes, _ = answers(case, model, case.inputs)
    rows = masked(case.inputs)
    of_rows = [] if rows is None else answers(case, model, rows)[0]
    for array in arrays + of_rows:
        # A model that gives nothing, or the same whatever its weights, would prove nothing.
        if not np.isfinite(array).all() or not array.any():
            raise ValueError(f"{name}: outputs must be finite and not all 0. Received: {array}")
    model.save(folder / f"{name}{MODEL}")
    model.save_weights(folder / f"{name}{WEIGHTS}")
    np.savez(
        folder / f"{name}{ANSWERS}",
        dtypes=np.array(dtypes),
        **{f"input_{i}": array for i, array in enumerate(case.inputs)},
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
        for name, case in CASES.items():
            write(name, case, folder)
        _packed(folder.iterdir(), path)
    print(f"{len(CASES)} cases, {path.stat().st_size / 1024:.0f} kB: {path}")


if __name__ == "__main__":
    main()
