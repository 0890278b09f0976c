"""Writing a folder: whether a configuration is that of a model, and both files.

Both are written aside and then take the place of those that are there, so that an error halfway
leaves the folder as it was.
"""

import json
import os
import pathlib
import re

import numpy as np

from keras_attention.convert.huggingface import tensors

# Weights in all forms that `transformers` reads from a folder, beside the file that is written.
_ENDS = {"": "safetensors", "pytorch_": "bin", "tf_": "h5", "flax_": "msgpack"}
_FORMER = re.compile(
    "|".join(rf"{x}model(-\d{{5}}-of-\d{{5}})?\.{end}(\.index\.json)?" for x, end in _ENDS.items())
)
ADAPTER = "adapter_config.json"


def write(folder, entries, values):
    """Writes the variables of `entries` and the fields `values` of `config.json`."""
    from safetensors.numpy import save_file

    folder = pathlib.Path(folder)
    check_no_adapter(folder)
    former = {x for x in folder.glob("*") if _FORMER.fullmatch(x.name)}
    index = folder / tensors.INDEX
    if index.is_file():
        former |= {folder / name for name in tensors.indexed(index)}
    arrays = {x.name: np.ascontiguousarray(x.join(x.arrays())) for x in entries}
    folder.mkdir(parents=True, exist_ok=True)
    found = {str(array.dtype) for array in arrays.values()}
    # In which `transformers` loads the arrays as they are: float32 has each number of the halves.
    dtype = found.pop() if len(found) == 1 else "float32"
    names = [name for name in ("dtype", "torch_dtype") if name in values] or ["dtype"]
    values = {**values, **dict.fromkeys(names, dtype)}
    text = json.dumps(values, indent=2, sort_keys=True)
    replace(folder / tensors.SINGLE, lambda path: save_file(arrays, path, {"format": "pt"}))
    replace(folder / "config.json", lambda path: path.write_text(text + "\n", encoding="utf-8"))
    for path in former - {folder / tensors.SINGLE}:
        path.unlink(missing_ok=True)


def check_no_adapter(folder):
    """Raises if a folder has an adapter, which `transformers` adds to the weights if it can."""
    path = pathlib.Path(folder) / ADAPTER
    if path.exists():
        raise ValueError(
            f"`folder` must have no `{ADAPTER}`, whose adapter `transformers` adds to the weights "
            "it was made for. Move it elsewhere: `convert.load_adapter(model, elsewhere)` reads it "
            f"onto the model. Received: {path}"
        )


def replace(path, write):
    """Lets `write` make a file beside a path, which it then takes."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


# Comparing a configuration with a model

# Arguments that change nothing in what a trained model computes.
_FREE = ("name", "trainable", "dtype", "metadata", "seed", "module", "registered_name")
# What Keras adds once a layer is built.
_BUILT = ("build_config", "build_input_shape")
_FREE_ENDS = ("dropout", "initializer", "regularizer", "constraint")
_ABSENT = object()


def check(model, values, known, make, free=()):
    """Raises unless `make` makes a model with the options of `model` of the fields `values`.

    Options are the arguments of constructors, those of all parts included, except the names `free`.
    `known` are the fields that the model came with, or None.
    """

    def options(model):
        return dict(_options(model.get_config(), free))

    def received(fields):
        given = "".join(f"{name}={values.get(name)!r}, " for name in fields)
        return f"`config` must be the configuration of `model`. Received: {given}"

    def matters(name):
        # Null is as if a field were absent.
        alone = {k: v for k, v in {**known, name: values.get(name)}.items() if v is not None}
        try:
            return _difference(options(make(alone)), has) is not None
        except ValueError:
            return True

    # The names of those that are not as the model came with.
    names = sorted(values.keys() | (known or {}).keys())
    fields = [x for x in names if known is not None and values.get(x) != known.get(x)]
    try:
        made = make(values)
    except ValueError as error:
        raise ValueError(f"{received(fields)}of which none is made: {error}") from error
    if not isinstance(model, type(made)):
        raise ValueError(
            f"`config` must describe `model`, which must be a {type(made).__name__}. "
            f"Received: {model!r}"
        )
    would, has = options(made), options(model)
    at = _difference(would, has)
    if at is not None:
        # The fields that make a difference by themselves, if any does.
        alone = [name for name in fields if matters(name)] or fields
        wanted, found = (repr(x[at]) if at in x else "not there" for x in (would, has))
        raise ValueError(
            f"{received(alone)}with which {at} would be {wanted}, where the model has {found}"
        )


def _options(value, free, path=""):
    """The options in a configuration that are not free, each with its path; classes are options."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in (*_FREE, *_BUILT, *free) and not name.endswith(_FREE_ENDS):
                # Without the levels of serialized objects.
                inside = "" if name in ("class_name", "config") else f".{name}"
                yield from _options(inner, free, f"{path}{inside}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        # A `Sequential` begins with an input once it is built.
        parts = [
            x for x in value if not (isinstance(x, dict) and x.get("class_name") == "InputLayer")
        ]
        # A built norm has a list of its only axis.
        alone = len(parts) == 1 and not isinstance(parts[0], dict)
        if not alone:
            yield f"the number of `{path}`", len(parts)
        for n, part in enumerate(parts):
            yield from _options(part, free, path if alone else f"{path}[{n}]")
    else:
        yield f"`{path}`", value


def _difference(first, second):
    """The path of the first option that differs, or None."""
    paths = {**first, **second}
    return next((x for x in paths if first.get(x, _ABSENT) != second.get(x, _ABSENT)), None)
