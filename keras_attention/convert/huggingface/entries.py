"""Which variables of a model a tensor fills: tables of names and parts, and what walks over them.

A table has names of tensors, and for each the part of a model that it is, by its path: a variable
such as "embeddings.tokens.table", or a layer with a weight and perhaps a bias, such as
"attention.query_dense", whose tensors are called `NAME.weight` and `NAME.bias`. A part that a model
does not have has no tensors. Other than a path there may be

- a tuple of paths: projections one after another in one tensor;
- a function of the name and the owner of paths, which returns entries: `blocks`, `within`, and the
  layouts that are not the usual ones.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_attention.layers.rms_norm import RMSNorm

# The projections of an attention that are often one tensor.
HEADS = ("attention.query_dense", "attention.key_dense", "attention.value_dense")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor.

    Args:
        name: of the tensor.
        variables: the Keras variables that it fills.
        split: from the tensor to the arrays of the variables, up to their shapes.
        join: from these, in the shapes of the variables, to the tensor.
        at: the only index of their first axis that it fills; None for all.
    """

    name: str
    variables: tuple[Any, ...]
    split: Callable[[np.ndarray], list[np.ndarray]]
    join: Callable[[list[np.ndarray]], np.ndarray]
    at: int | None = None

    def arrays(self):
        """The arrays of which the tensor is."""
        given = [v if self.at is None else v[self.at] for v in self.variables]
        return [keras.ops.convert_to_numpy(x) for x in given]

    def shape(self):
        """The shape of the tensor."""
        first = 0 if self.at is None else 1
        return self.join([np.zeros(v.shape[first:], "bool") for v in self.variables]).shape


def of(table, owner, prefix=""):
    """The entries of a table, whose paths begin at `owner` and whose names at `prefix`."""
    return [entry for name, what in table.items() for entry in _entries(prefix + name, owner, what)]


def part(owner, path):
    """A part of a model by its path; None if there is none."""
    for name in path.split("."):
        if owner is not None:
            owner = owner[int(name)] if name.isdigit() else getattr(owner, name, None)
    return owner


def _entries(name, owner, what):
    if callable(what):
        return what(name, owner)
    if isinstance(what, tuple):
        return _projections(name, [part(owner, path) for path in what])
    found = part(owner, what)
    if found is None:
        return []
    if isinstance(found, RMSNorm):
        return [_plain(f"{name}.weight", found.scale)]
    if isinstance(found, keras.layers.LayerNormalization):
        bias = [_plain(f"{name}.bias", found.beta)] if found.center else []
        return [_plain(f"{name}.weight", found.gamma), *bias]
    if isinstance(found, keras.layers.Layer):
        # Only the projection that joins heads has several input axes.
        inputs = len(found.kernel.shape) - 1 if what.endswith("output_dense") else 1
        return _projections(name, [found], inputs=inputs)
    return [_plain(name, found)]


def attention(prefix, names, layer="attention"):
    """A table of projections, by the names of query, key, value and output after a `prefix`."""
    roles = ("query", "key", "value", "output")
    given = zip(names.split(), roles, strict=True)
    return {f"{prefix}{name}": f"{layer}.{role}_dense" for name, role in given}


# Layouts of one tensor


def _plain(name, variable):
    """A tensor in the layout of its variable."""
    return Entry(name, (variable,), lambda x: [x], lambda arrays: arrays[0])


def _projections(name, layers, groups=1, inputs=1):
    """The weight and the bias, if any, of projections one after another.

    With `groups`, so many parts of each one take turns: query, key and value of the first head,
    then of the second. `inputs` is the number of axes of inputs of a kernel.
    """
    found = [_matrix(f"{name}.weight", [layer.kernel for layer in layers], groups, inputs)]
    if layers[0].bias is not None:
        found.append(_vector(f"{name}.bias", [layer.bias for layer in layers], groups))
    return found


def _matrix(name, kernels, groups, inputs):
    """A matrix (outputs, inputs)."""
    sizes = [int(np.prod(kernel.shape[inputs:])) // groups for kernel in kernels]

    def split(x):
        return np.split(x.T.reshape(x.shape[1], groups, -1), np.cumsum(sizes)[:-1], axis=2)

    def join(arrays):
        parts = [x.reshape(-1, groups, size) for x, size in zip(arrays, sizes, strict=True)]
        whole = np.concatenate(parts, axis=2)
        return whole.reshape(len(whole), -1).T

    return Entry(name, tuple(kernels), split, join)


def _vector(name, biases, groups):
    """A vector of several biases."""
    sizes = [int(np.prod(bias.shape)) // groups for bias in biases]

    def split(x):
        return np.split(x.reshape(groups, -1), np.cumsum(sizes)[:-1], axis=1)

    def join(arrays):
        return np.concatenate([x.reshape(groups, -1) for x in arrays], axis=1).ravel()

    return Entry(name, tuple(biases), split, join)


def changed(path, split, join):
    """A variable and its tensor, each of which is made of the other: by `split` and by `join`."""

    def find(name, owner):
        variable = part(owner, path)
        if variable is None:
            return []
        return [Entry(name, (variable,), lambda x: [split(x)], lambda arrays: join(arrays[0]))]

    return find


def rows(path, skipped):
    """A table without its first rows, which no position has; they are written as zeros."""
    return changed(path, lambda x: x[skipped:], lambda x: np.pad(x, ((skipped, 0), (0, 0))))


def axes(path, count):
    """A tensor of `count` axes, of which the first have the size 1."""
    return changed(path, lambda x: x, lambda x: x.reshape(((1,) * count + x.shape)[-count:]))


def convolution(path):
    """The weight (outputs, inputs, …) and the bias, if any, of a convolution."""

    def find(name, owner):
        weight = changed(
            f"{path}.kernel",
            lambda x: np.moveaxis(x, (0, 1), (-1, -2)),
            lambda x: np.moveaxis(x, (-1, -2), (0, 1)),
        )
        return of({".weight": weight, ".bias": f"{path}.bias"}, owner, name)

    return find


# Layouts of several tensors


def by_head(groups, paths=HEADS):
    """Projections in one tensor whose heads take turns; `groups` is the path of how many do."""
    return lambda name, owner: _projections(
        name, [part(owner, path) for path in paths], groups=part(owner, groups)
    )


def without_bias(path):
    """A projection whose bias files do not have: that of ours stays 0."""
    return lambda name, owner: _entries(name, owner, path)[:1]


def transposed(what):
    """The same with matrices in the layout (inputs, outputs)."""

    def find(name, owner):
        weight, *bias = _entries(name, owner, what)
        turned = dataclasses.replace(
            weight, split=lambda x: weight.split(x.T), join=lambda arrays: weight.join(arrays).T
        )
        return [turned, *bias]

    return find


def experts(**names):
    """The projections of each expert of a mixture, `NAME.N.…`, by the names of those of all."""

    def find(name, owner):
        layer = owner.feed_forward
        return [
            Entry(f"{name}.{n}.{given}.weight", (kernel,), _turned, lambda arrays: arrays[0].T, n)
            for role, given in names.items()
            for kernel in [getattr(layer, f"{role}_kernel", None)]
            for n in range(0 if kernel is None else kernel.shape[0])
        ]

    return find


def _turned(x):
    return [x.T]


# Parts of a model


def within(path, table):
    """The tensors of a part, `NAME.…`; none if there is no such part."""

    def find(name, owner):
        inside = part(owner, path)
        return [] if inside is None else of(table, inside, f"{name}.")

    return find


def blocks(table):
    """The tensors of each block of a stack, `NAME.N.…`."""
    return lambda name, stack: [
        entry for n, block in enumerate(stack.blocks) for entry in of(table, block, f"{name}.{n}.")
    ]
