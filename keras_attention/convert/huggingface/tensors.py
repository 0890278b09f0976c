"""Tensors of a Hugging Face model, one at a time, and which variables of a model they are.

An `Entry` is a tensor of the files and the variables that it fills, with a function in either
direction, so that the same list reads a model and writes it.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor.

    Args:
        name: of the tensor.
        variables: the Keras variables that it fills.
        split: from the tensor to the arrays of the variables, up to their shapes.
        join: from these, in the shapes of the variables, to the tensor.
    """

    name: str
    variables: tuple[Any, ...]
    split: Callable[[np.ndarray], list[np.ndarray]]
    join: Callable[[list[np.ndarray]], np.ndarray]


def plain(name, variable):
    """A tensor in the layout of its variable."""
    return Entry(name, (variable,), lambda x: [x], lambda arrays: arrays[0])


def matrix(name, variable, inputs=1):
    """A matrix (outputs, inputs), of a kernel whose first `inputs` axes are those of inputs."""
    return fused(name, [variable], inputs)


def fused(name, variables, inputs=1, groups=1):
    """A matrix (outputs, inputs) of the outputs of several kernels, one after another.

    With `groups`, so many parts of each one take turns: query, key and value of the first head,
    then of the second.
    """

    def split(x):
        parts = x.T.reshape(x.shape[1], groups, -1)
        return np.split(parts, _ends([_outputs(v, inputs) // groups for v in variables]), axis=2)

    def join(arrays):
        sizes = [_outputs(v, inputs) // groups for v in variables]
        parts = [x.reshape(-1, groups, n) for x, n in zip(arrays, sizes, strict=True)]
        whole = np.concatenate(parts, axis=2)
        return whole.reshape(len(whole), -1).T

    return Entry(name, tuple(variables), split, join)


def fused_bias(name, variables, groups=1):
    """A vector of several biases, one after another, or with `groups` as in `fused`."""

    def split(x):
        sizes = [int(np.prod(v.shape)) // groups for v in variables]
        return np.split(x.reshape(groups, -1), _ends(sizes), axis=1)

    def join(arrays):
        return np.concatenate([x.reshape(groups, -1) for x in arrays], axis=1).ravel()

    return Entry(name, tuple(variables), split, join)


def transposed(entry):
    """The same tensor in the layout (inputs, outputs)."""
    return dataclasses.replace(
        entry, split=lambda x: entry.split(x.T), join=lambda arrays: entry.join(arrays).T
    )


def _outputs(variable, inputs):
    return int(np.prod(variable.shape[inputs:]))


def _ends(sizes):
    return np.cumsum(sizes)[:-1]


def dense(name, layer, inputs=1):
    """The weight and the bias, if any, of a projection `name`."""
    found = [matrix(f"{name}.weight", layer.kernel, inputs)]
    if layer.bias is not None:
        found.append(fused_bias(f"{name}.bias", [layer.bias]))
    return found


def fused_dense(name, layers, groups=1):
    """The weight and the bias, if any, of several projections in one; see `fused`."""
    found = [fused(f"{name}.weight", [layer.kernel for layer in layers], groups=groups)]
    if layers[0].bias is not None:
        found.append(fused_bias(f"{name}.bias", [layer.bias for layer in layers], groups))
    return found


def norm(name, layer):
    """The weights of a LayerNormalization or an RMSNorm."""
    if layer is None:
        return []
    if isinstance(layer, keras.layers.LayerNormalization):
        found = [plain(f"{name}.weight", layer.gamma)]
        return [*found, plain(f"{name}.bias", layer.beta)] if layer.center else found
    return [plain(f"{name}.weight", layer.scale)]


class Checkpoint:
    """The tensors of a folder, read one at a time."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            files = sorted(set(named.values()))
            if any(pathlib.PurePath(name).name != name for name in files):
                raise ValueError(f"`{index}` must name files of its own folder. Received: {files}")
        else:
            files = ["model.safetensors"]
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            pickles = sorted(x.name for x in folder.glob("*.bin"))
            hint = ""
            if pickles:
                hint = (
                    f", and {pickles}, which are pickles: opening one may run any code. Save the "
                    "model with `safe_serialization=True`"
                )
            raise ValueError(
                f"`{folder}` must have its weights in `{missing[0]}`. Received: no such file{hint}"
            )
        self._files = [_opened(folder / name) for name in files]
        self._places = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118
        self.names = set(self._places)

    def __getitem__(self, name):
        return self._places[name].get_tensor(name)


def _opened(path):
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError(
            "Files of Hugging Face are read by `safetensors`: "
            "pip install 'keras_attention[huggingface]'"
        ) from error
    try:
        return safe_open(path, framework="numpy")
    except Exception as error:  # safetensors has no public class of its errors
        raise ValueError(
            f"`{path}` must be a file of safetensors. Received: {type(error).__name__}: {error}"
        ) from error


def read(entries, checkpoint, unused=lambda name: False):
    """Fills the variables of `entries` from a `Checkpoint`, whose tensors must be all of these.

    `unused` tells names of tensors that a model does not need, such as buffers.
    """
    expected = {entry.name for entry in entries}
    missing = sorted(expected - checkpoint.names)
    unknown = sorted(name for name in checkpoint.names - expected if not unused(name))
    if missing or unknown:
        raise ValueError(
            "The tensors of the files must be those of the configuration. Received: "
            f"{len(missing)} missing, {missing[:5]}, and {len(unknown)} unknown, {unknown[:5]}"
        )
    for entry in entries:
        tensor = checkpoint[entry.name]
        arrays = entry.split(tensor)
        sizes = [int(np.prod(variable.shape)) for variable in entry.variables]
        if [array.size for array in arrays] != sizes:
            raise ValueError(
                f"The tensor {entry.name!r} must have {sum(sizes)} elements, as the configuration "
                f"has it. Received: shape {tensor.shape}"
            )
        for variable, array in zip(entry.variables, arrays, strict=True):
            variable.assign(np.ascontiguousarray(array).reshape(variable.shape))


def write(entries, path):
    """Writes the variables of `entries` to a file of safetensors."""
    from safetensors.numpy import save_file

    tensors = {}
    for entry in entries:
        arrays = [keras.ops.convert_to_numpy(variable) for variable in entry.variables]
        tensors[entry.name] = np.ascontiguousarray(entry.join(arrays))
    save_file(tensors, path, metadata={"format": "pt"})
