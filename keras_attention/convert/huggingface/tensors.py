"""Tensors of the files of a Hugging Face model, and variables that are read from them."""

import functools
import json
import math
import mmap
import pathlib
import re
from typing import Any

import ml_dtypes
import numpy as np

from keras_attention.backend import backend

# The file of the tensors, or the list of several.
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
# Bytes at whose multiples frameworks want arrays to begin.
ALIGNMENT = 64
# Of weights in safetensors, and of NumPy with `ml_dtypes`, which Keras needs too. Integers would be
# those of a quantized model, whose scales nobody would read.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": ml_dtypes.bfloat16}

# What to do with files in other formats.
_OTHERS = {
    r".*\.gguf": "which `transformers` converts: `from_pretrained(folder, gguf_file=…, "
    "quantization_config=GgufConfig(dequantize=True))` and `save_pretrained`",
    r"consolidated.*": "the layout of Meta and Mistral: download `model….safetensors`, or run "
    "`convert_llama_weights_to_hf.py` or `convert_mistral_weights_to_hf.py` of `transformers`",
    r".*\.(bin|pth?|ckpt)": "which are pickles: opening one may run any code. Where you trust it, "
    "`from_pretrained` and `save_pretrained` of `transformers`, or of `peft`, write safetensors",
    r"adapter_config.json": "an adapter: read the model it is of, and `load_adapter` onto that",
}


def other_formats(folder):
    """What to do with files of a folder that are in another format, as the end of a message."""
    names = sorted(x.name for x in pathlib.Path(folder).glob("*"))
    for pattern, advice in _OTHERS.items():
        if found := [name for name in names if re.fullmatch(pattern, name)]:
            return f", and {found}, {advice}"
    return ""


class Checkpoint:
    """The tensors of a folder, read one at a time."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        index = folder / INDEX
        # `transformers` prefers a single file too.
        several = index.is_file() and not (folder / SINGLE).is_file()
        files = indexed(index) if several else [SINGLE]
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise ValueError(
                f"`{folder}` must have its weights in `{missing[0]}`. Received: no such file"
                f"{other_formats(folder)}"
            )
        self._files = [File(folder / name) for name in files]
        self._places = {_present(x): (file, x) for file in self._files for x in file.tensors}
        self.names = set(self._places)

    def __getitem__(self, name):
        file, stored = self._places[name]
        return file[stored]

    def shape(self, name):
        """The shape of a tensor, which is not read for it."""
        file, stored = self._places[name]
        return tuple(file.tensors[stored]["shape"])


def _present(name):
    """The name of a tensor: norms of the first BERT have the names of TensorFlow 1."""
    name = re.sub(r"LayerNorm\.gamma\Z", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta\Z", "LayerNorm.bias", name)


def indexed(index):
    """The files that an index names, all of its own folder."""
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        # In the syntax of any system.
        inside = all(
            isinstance(x, str) and pathlib.PureWindowsPath(x).name == x and x.endswith(SUFFIX)
            for x in files
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"`{index}` must be an object with a `weight_map` of tensors and files. "
            f"Received: {type(error).__name__}: {error}"
        ) from error
    if not inside:
        raise ValueError(
            f"`{index}` must name files of its own folder that end in {SUFFIX!r}. "
            f"Received: {sorted(map(str, files))}"
        )
    return sorted(files)


class File:
    """The tensors of a file, as arrays in its pages: none takes memory of its own."""

    def __init__(self, path):
        try:
            from safetensors import safe_open
        except ImportError as error:
            raise ImportError(
                "Files of Hugging Face are read by `safetensors`: pip install safetensors"
            ) from error
        try:
            # It checks that the header is sound and that the tensors fill the rest of the file.
            with safe_open(path, framework="numpy"):
                pass
        except Exception as error:  # safetensors has no public class of its errors
            raise ValueError(
                f"`{path}` must be a file of safetensors. Received: {type(error).__name__}: {error}"
            ) from error
        self.path = path
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.tensors = json.loads(file.read(size))
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.tensors.pop("__metadata__", None)
        self._start = 8 + size

    def __getitem__(self, name):
        tensor = self.tensors[name]
        if tensor["dtype"] not in DTYPES:
            raise ValueError(
                f"The tensor {name!r} of `{self.path}` must be of one of {sorted(DTYPES)}. "
                f"Received: {tensor['dtype']!r}"
            )
        first, last = tensor["data_offsets"]
        dtype = np.dtype(DTYPES[tensor["dtype"]])
        count = (last - first) // dtype.itemsize
        found = np.frombuffer(self._pages, dtype, count, self._start + first)
        return found.reshape(tensor["shape"])


def read(entries, checkpoint, give, others):
    """Lets the variables of `entries` be read from a `Checkpoint`, which must have these tensors.

    `give` takes a variable and a function of a shape and a dtype, from which it gets its value. The
    checkpoint may have `others` beside them.
    """
    names = checkpoint.names
    entries = [e for e in entries if e.name in names or not others.optional(e.name)]
    expected = {entry.name for entry in entries}
    copies = {name: others.first(name, expected) for name in sorted(names - expected)}
    copies = {name: first for name, first in copies.items() if first is not None}
    # A tensor may be there under a second name alone.
    stored = {first: name for name, first in reversed(copies.items())}
    stored |= {name: name for name in expected & names}
    missing = sorted(expected - stored.keys())
    unknown = sorted(x for x in names - expected - copies.keys() if not others.unread(x))
    if missing or unknown:
        raise ValueError(
            "The tensors of the files must be those of the configuration. Received: "
            f"{len(missing)} missing, {missing[:5]}, and {len(unknown)} unknown, {unknown[:5]}"
        )
    for name, first in copies.items():
        if not np.array_equal(checkpoint[name], checkpoint[stored[first]]):
            raise ValueError(
                f"The tensors {name!r} and {stored[first]!r} must be equal: the model has one for "
                "both. Received: different ones, as of a model that is not tied"
            )
    entries = [entry._replace(name=stored[entry.name]) for entry in entries]
    for entry in entries:
        shape, wanted = checkpoint.shape(entry.name), entry.shape()
        if shape != wanted:
            raise ValueError(
                f"The tensor {entry.name!r} must have the shape {wanted}, as the configuration "
                f"has it. Received: shape {shape}"
            )

    @functools.lru_cache(1)
    def arrays(n):
        return entries[n].split(checkpoint[entries[n].name])

    def value(places, shape, dtype):
        found = _empty(shape, dtype)
        for n, m in places:
            # A copy: the pages of the file are not the variable's.
            part, given = found if entries[n].at is None else found[entries[n].at], arrays(n)[m]
            np.copyto(part.reshape(given.shape), given, casting="unsafe")
        return backend.of_numpy(found)

    variables: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
    for n, entry in enumerate(entries):
        for m, variable in enumerate(entry.variables):
            variables.setdefault(id(variable), (variable, []))[1].append((n, m))
    for variable, places in variables.values():
        give(variable, functools.partial(value, places))


def _empty(shape, dtype):
    """An array that is aligned, so that TensorFlow and JAX take it over, and none copies it."""
    dtype, count = np.dtype(dtype), math.prod(shape)
    memory = np.empty(count * dtype.itemsize + ALIGNMENT, "uint8")
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
