"""Utilities of the converters: recognizing a layer, rejecting one, and copying a projection."""

import keras
import numpy as np

from keras_attention.convert.huggingface.entries import part
from keras_attention.core import keras_private


def refuse(peer, why, instead):
    """Raises an error with the argument received, the reason and a fix."""
    cls, name = type(peer), getattr(peer, "name", None)
    named = f" named {name!r}" if isinstance(name, str) else ""
    described = f"a {cls.__module__.split('.')[0]} {cls.__name__}{named}"
    raise ValueError(f"Cannot convert {described}: {why}. {instead}")


def converter(peer, package, converters):
    """The function of `converters` for the very class of `peer`: a subclass may differ."""
    cls = type(peer)
    if not cls.__module__.startswith(f"{package}.") or cls.__name__ not in converters:
        refuse(
            peer,
            f"expected one of {package}: {', '.join(sorted(converters))}",
            "A subclass may compute something else, and of a model or a stack, convert the layers.",
        )
    check_call(peer)
    if isinstance(peer, keras.Layer):
        if not peer.built:
            refuse(peer, "it has no weights yet", "Call or build it first.")
        parts = [peer, *keras_private.sublayers(peer)]
        if any(getattr(part, "quantization_mode", None) is not None for part in parts):
            instead = "Convert the layer as it was before, and quantize the new one."
            refuse(peer, "its weights are quantized", instead)
    return converters[cls.__name__]


def check_call(peer, part=None, name=None):
    """Rejects a peer if it or `part` has another `call` or `forward`, or hooks."""
    own = vars(peer if part is None else part)
    found = [name for name in ("call", "forward") if name in own]
    # Those of `torch.nn.Module`, which may change inputs or outputs.
    found += [name[1:] for name in ("_forward_pre_hooks", "_forward_hooks") if own.get(name)]
    if found:
        of = f" of its part `{name}`" if name else ""
        refuse(
            peer,
            f"the {' and '.join(found)}{of} may change what its class computes",
            "Convert it without, and do the same around the new layer.",
        )


def check_part(peer, path, classes, **expected):
    """The part of a peer at a path, unless it was replaced by one with other attributes.

    Its class must have one of the names `classes`, and be of the package of `peer` or of Keras.
    """
    found = part(peer, path)
    packages = (type(peer).__module__.split(".")[0], "keras")
    if type(found).__name__ not in classes or type(found).__module__.split(".")[0] not in packages:
        _replaced(peer, path, f"a {' or '.join(classes)}", f"a {type(found).__name__}")
    for name, value in expected.items():
        if (given := getattr(found, name)) is not value and given != value:
            _replaced(peer, path, f"{name}={value!r}", f"{name}={given!r}")
    check_call(peer, found, path)
    return found


def _replaced(peer, path, expected, found):
    why = f"its part `{path}` was replaced: expected {expected}, and found {found}"
    refuse(peer, why, "Convert its attention alone, and put the parts together in a custom layer.")


def arguments(layer, names=""):
    """The constructor arguments of any Keras layer, and those that have its own `names`."""
    common = {"name": layer.name, "trainable": layer.trainable, "dtype": layer.dtype_policy}
    return {**common, **{name: getattr(layer, name) for name in names.split()}}


def assign(variable, array):
    """Assigns an array or a Keras variable to a variable with the same number of elements."""
    if not isinstance(array, np.ndarray):
        array = keras.ops.convert_to_numpy(array)
    variable.assign(np.reshape(array, variable.shape))


def heads(theirs="", ours=""):
    """The table of `copy` for the projections of an attention, which have the same names here."""
    names = [f"_{role}_dense" for role in ("query", "key", "value", "gate", "output")]
    return {theirs + name: ours + name for name in names}


def copy(peer, ours, table):
    """Copies projections, whose LoRA is merged, and norms of a Keras layer.

    `table` has the paths of ours by theirs; what ours does not have is left out.
    """
    for path, target in table.items():
        target = part(ours, target)
        if isinstance(target, keras.layers.LayerNormalization):
            same = {"epsilon": target.epsilon, "axis": target.axis}
            source = check_part(peer, path, ("LayerNormalization",), **same)
            pairs = [(target.gamma, source.gamma), (target.beta, source.beta)]
        elif target is not None:
            name = type(target).__name__
            source = check_part(peer, path, (name,), activation=target.activation)
            wanted, found = (
                f"a kernel {tuple(x.kernel.shape)} and use_bias={x.bias is not None}"
                for x in (target, source)
            )
            if found != wanted:
                _replaced(peer, path, wanted, found.removeprefix("a kernel "))
            pairs = [(target.kernel, source.kernel), (target.bias, source.bias)]
        else:
            continue
        # A norm without a weight scales by 1 and adds 0, as one that is new.
        for variable, given in pairs:
            if given is not None:
                assign(variable, given)
