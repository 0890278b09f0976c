"""A folder of a model: its tensors and its configuration, and nothing left of a former one.

Both files are written aside and then take the place of those that are there, so that an error
halfway leaves the folder as it was.
"""

import json
import os
import pathlib
import re

import numpy as np

from keras_attention.convert.huggingface import tensors

# Weights in all forms that `transformers` reads from a folder, beside the file that is written.
_FORMER = re.compile(
    r"(model\.safetensors\.index\.json|model-\d{5}-of-\d{5}\.safetensors"
    r"|pytorch_model(-\d{5}-of-\d{5})?\.bin|pytorch_model\.bin\.index\.json"
    r"|tf_model(-\d{5}-of-\d{5})?\.h5|tf_model\.h5\.index\.json"
    r"|flax_model(-\d{5}-of-\d{5})?\.msgpack|flax_model\.msgpack\.index\.json)"
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
    _replace(folder / tensors.SINGLE, lambda path: save_file(arrays, path, {"format": "pt"}))
    _replace(folder / "config.json", lambda path: path.write_text(text + "\n", encoding="utf-8"))
    for path in former - {folder / tensors.SINGLE}:
        path.unlink(missing_ok=True)


def check_no_adapter(folder):
    """Raises if a folder has an adapter, which `transformers` adds to the weights if it can."""
    path = pathlib.Path(folder) / ADAPTER
    if path.exists():
        raise ValueError(
            f"`folder` must have no `{ADAPTER}`: its adapter, which `transformers` adds to the "
            "weights, is not supported. Merge it into them with `peft`'s `merge_and_unload`, or "
            f"move it elsewhere. Received: {path}"
        )


def _replace(path, write):
    """Lets `write` make a file beside a path, which it then takes."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
