"""Which variables of a model a tensor fills: tables of names and parts, and what walks over them.

A table has names of tensors, and for each the part of a model that it is, by its path: a variable
such as "embeddings.tokens.table", or a layer with a weight and perhaps a bias, such as
"attention.query_dense", whose tensors are called `NAME.weight` and `NAME.bias`. A part that a model
does not have has no tensors, nor has a `Sequential`, whose layers have. There may also be

- a tuple of paths: projections one after another in one tensor;
- a function of the name and the owner of paths, which returns entries: `blocks`, `within`, and the
  layouts that are not the usual ones.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_attention.layers.blocks.norms import HeadNorm, RMSNorm

ROLES = ("query", "key", "value", "output")
# The projections of an attention that are often one tensor.
HEADS = ("attention.query_dense", "attention.key_dense", "attention.value_dense")
# Those of the experts of a mixture.
KERNELS = tuple(f"feed_forward.{role}_kernel" for role in ("gate", "intermediate", "output"))


class Entry(NamedTuple):
    """One tensor, and the Keras variables that it fills."""

    name: str
    variables: tuple[Any, ...]
    # From the tensor to the arrays of the variables, up to their shapes, and back.
    split: Callable[[np.ndarray], list[np.ndarray]]
    join: Callable[[list[np.ndarray]], np.ndarray]
    # The only index of their first axis that it fills; None for all.
    at: int | None = None
    # Whether a matrix is (inputs, outputs).
    inputs_first: bool = False

    def arrays(self):
        given = [v if self.at is None else v[self.at] for v in self.variables]
        return [keras.ops.convert_to_numpy(x) for x in given]

    def shape(self):
        first = 0 if self.at is None else 1
        return self.join([np.zeros(v.shape[first:], "bool") for v in self.variables]).shape


def of(table, owner, prefix=""):
    """The entries of a table, whose paths begin at `owner` and whose names at `prefix`."""
    return [entry for name, what in table.items() for entry in _entries(prefix + name, owner, what)]


def part(owner, path):
    """A part of a model by its path, itself by an empty one; None if there is none."""
    for name in filter(None, path.split(".")):
        if owner is not None:
            owner = owner[int(name)] if name.isdigit() else getattr(owner, name, None)
    return owner


def _entries(name, owner, what):
    if callable(what):
        return what(name, owner)
    if isinstance(what, tuple):
        return _projections(name, [part(owner, path) for path in what])
    found = part(owner, what)
    if found is None or isinstance(found, keras.Sequential):
        return []
    if isinstance(found, HeadNorm) and found.together:
        entry = _plain(f"{name}.weight", found.scale)
        return [entry._replace(join=lambda arrays: arrays[0].ravel())]
    if isinstance(found, (HeadNorm, RMSNorm)):
        return [_plain(f"{name}.weight", found.scale)]
    if isinstance(found, keras.layers.LayerNormalization):
        return of({".weight": "gamma", ".bias": "beta"}, found, name)
    if isinstance(found, keras.layers.Layer):
        # Only the projection that joins heads has several input axes.
        inputs = len(found.kernel.shape) - 1 if what.endswith("output_dense") else 1
        return _projections(name, [found], inputs=inputs)
    return [_plain(name, found)]


# Tables of usual parts, by strings of names, of which the first may be what all begin with: "mlp."


def norms(names):
    """The norms before both branches of a block, or the one of both."""
    both = ("attention_norm", "feed_forward_norm")
    return _named(names, both[:1], both)


def attention(names, layer="attention", heads=HEADS):
    """Projections of query, key, value and output; or the first three as `heads`, and output."""
    query, key, value, output = (f"{layer}.{role}_dense" for role in ROLES)
    return _named(names, (query, key, value, output), (heads, output))


def qk_norms(names):
    """The norms of queries and of keys."""
    return _named(names, ("attention.query_norm", "attention.key_norm"))


def network(names, layer="feed_forward"):
    """The layers of a feed-forward network, without a gate or with one, which is the first."""
    gate, *others = (f"{layer}.{role}_dense" for role in ("gate", "intermediate", "output"))
    return _named(names, others, (gate, *others))


def gated_in_one(names):
    """Those of a network whose gate is one tensor with the layer into its hidden features."""
    gate, into, out = network("gate into out").values()
    return _named(names, ((gate, into), out))


def block(of_norms, of_attention, of_network, heads=HEADS):
    """The tensors of a block, by the names of all three."""
    return {**norms(of_norms), **attention(of_attention, heads=heads), **network(of_network)}


def names_of(text):
    """The names of a text, of which the first may be what the others begin with."""
    first, *others = text.split() or [""]
    return [first + name for name in others] if first[-1:] in (".", "") else [first, *others]


def _named(names, *paths):
    """A table of as many paths as there are names."""
    names = names_of(names)
    return dict(zip(names, next(x for x in paths if len(x) == len(names)), strict=True))


# Layouts of one tensor


def layout(function):
    """What makes of further arguments a function of a name and an owner, for a table."""

    @functools.wraps(function)
    def given(*args, **kwargs):
        return lambda name, owner: function(name, owner, *args, **kwargs)

    return given


def _plain(name, variable):
    """A tensor in the layout of its variable."""
    return Entry(name, (variable,), lambda x: [x], lambda arrays: arrays[0])


def _projections(name, layers, groups=1, inputs=1):
    """The weight and the bias, if any, of projections whose parts take turns in `groups`."""
    found = [_joined(f"{name}.weight", [layer.kernel for layer in layers], groups, inputs)]
    if layers[0].bias is not None:
        found.append(_joined(f"{name}.bias", [layer.bias for layer in layers], groups, 0))
    return found


def _joined(name, variables, groups, inputs):
    """A matrix (outputs, inputs) of kernels, or a vector of biases, which have no inputs."""
    sizes = [int(np.prod(variable.shape[inputs:])) // groups for variable in variables]

    def split(x):
        return np.split(x.T.reshape(-1, groups, sum(sizes)), np.cumsum(sizes)[:-1], axis=2)

    def join(arrays):
        parts = [x.reshape(-1, groups, size) for x, size in zip(arrays, sizes, strict=True)]
        whole = np.concatenate(parts, axis=2)
        return whole.reshape(len(whole), -1).T if inputs else whole.ravel()

    return Entry(name, tuple(variables), split, join)


@layout
def changed(name, owner, path, split, join):
    """A variable and its tensor, each of which is made of the other: by `split` and by `join`."""
    variable = part(owner, path)
    if variable is None:
        return []
    return [Entry(name, (variable,), lambda x: [split(x)], lambda arrays: join(arrays[0]))]


def rows(path, skipped):
    """A table without its first rows, which no position has; they are written as zeros."""
    return changed(path, lambda x: x[skipped:], lambda x: np.pad(x, ((skipped, 0), (0, 0))))


def axes(path, count):
    """A tensor of `count` axes, of which the first have the size 1."""
    return changed(path, lambda x: x, lambda x: x.reshape(((1,) * count + x.shape)[-count:]))


@layout
def convolution(name, owner, path):
    """The weight (outputs, inputs, …) and the bias, if any, of a convolution."""
    axes = (0, 1), (-1, -2)
    weight = changed(
        f"{path}.kernel", lambda x: np.moveaxis(x, *axes), lambda x: np.moveaxis(x, *axes[::-1])
    )
    return of({".weight": weight, ".bias": f"{path}.bias"}, owner, name)


@layout
def by_head(name, owner, groups, paths=HEADS):
    """Projections in one tensor whose heads take turns; `groups` is the path of how many do."""
    return _projections(name, [part(owner, path) for path in paths], groups=part(owner, groups))


@layout
def transposed(name, owner, what):
    """The same with a matrix in the layout (inputs, outputs)."""
    weight, *bias = _entries(name, owner, what)
    split, join = (lambda x: weight.split(x.T)), (lambda arrays: weight.join(arrays).T)
    return [weight._replace(split=split, join=join, inputs_first=True), *bias]


@layout
def experts(name, owner, names):
    """The projections of each expert of a mixture, `NAME.N.…`, by the names of `network`."""
    return [
        Entry(f"{name}.{n}.{given}.weight", (kernel,), lambda x: [x.T], lambda x: x[0].T, n)
        for given, path in _named(names, KERNELS).items()
        for kernel in [part(owner, path)]
        for n in range(0 if kernel is None else kernel.shape[0])
    ]


@layout
def of_heads(name, owner, path):
    """A vector of each head, `NAME.N.weight`; none if there is no such part."""
    scale = part(owner, f"{path}.scale")
    count = 0 if scale is None else scale.shape[0]
    return [_plain(f"{name}.{n}.weight", scale)._replace(at=n) for n in range(count)]


@layout
def within(name, owner, path, table):
    """The tensors of a part, `NAME.…`; none if there is no such part."""
    inside = part(owner, path)
    return [] if inside is None else of(table, inside, f"{name}.")


@layout
def blocks(name, stack, table):
    """The tensors of each block of a stack, `NAME.N.…`."""
    made = enumerate(stack.blocks)
    return [entry for n, block in made for entry in of(table, block, f"{name}.{n}.")]
