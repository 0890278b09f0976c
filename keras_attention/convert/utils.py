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


def check_part(peer, name, classes, **expected):
    """Rejects a peer whose part `name` was replaced by one of another class, or other attributes.

    Args:
        classes: names, of classes of the package of `peer` or of Keras.
        expected: values of attributes.

    Returns:
        The part.
    """
    part = getattr(peer, name)
    packages = (type(peer).__module__.split(".")[0], "keras")
    found = f"a {type(part).__name__}"
    wanted = None
    if type(part).__name__ not in classes or type(part).__module__.split(".")[0] not in packages:
        wanted = f"a {' or '.join(classes)}"
    for attribute, value in expected.items():
        if wanted is None and (given := getattr(part, attribute)) is not value and given != value:
            wanted, found = f"{attribute}={value!r}", f"{attribute}={given!r}"
    if wanted is not None:
        refuse(
            peer,
            f"its part `{name}` was replaced: expected {wanted}, and found {found}",
            "Convert its attention alone, and put the parts together in a custom layer.",
        )
    check_call(peer, part, name)
    return part


def check_weights(layer):
    """Rejects a Keras layer that has no weights yet, or whose weights are quantized."""
    if not layer.built:
        refuse(layer, "it has no weights yet", "Call or build it first.")
    parts = [layer, *keras_private.sublayers(layer)]
    if any(getattr(part, "quantization_mode", None) is not None for part in parts):
        refuse(
            layer,
            "its weights are quantized",
            "Convert the layer as it was before, and quantize the new one.",
        )


def arguments(layer, names=""):
    """The constructor arguments of any Keras layer, and those that have its own `names`."""
    common = {"name": layer.name, "trainable": layer.trainable, "dtype": layer.dtype_policy}
    return {**common, **{name: getattr(layer, name) for name in names.split()}}


def assign(variable, array):
    """Assigns an array or a Keras variable to a variable with the same number of elements."""
    if not isinstance(array, np.ndarray):
        array = keras.ops.convert_to_numpy(array)
    variable.assign(np.reshape(array, variable.shape))


# The projections of an attention with heads, by their names in Keras, and ours.
HEADS = {f"_{role}_dense": f"_{role}_dense" for role in ("query", "key", "value", "gate", "output")}


def copy(peer, ours, table):
    """Copies projections, whose LoRA is merged, and norms of a Keras layer.

    `table` has the paths of ours by their names; what ours does not have is left out.
    """
    for name, path in table.items():
        target = part(ours, path)
        if not isinstance(target, keras.layers.LayerNormalization):
            if target is not None:
                _copy_dense(peer, name, target)
            continue
        same = {"epsilon": target.epsilon, "axis": target.axis}
        source = check_part(peer, name, ("LayerNormalization",), **same)
        # A norm without them scales by 1.
        for variable, given in ((target.gamma, source.gamma), (target.beta, source.beta)):
            if given is not None:
                assign(variable, given)


def _copy_dense(peer, name, target):
    source = check_part(peer, name, (type(target).__name__,), activation=target.activation)
    expected, found = tuple(target.kernel.shape), tuple(source.kernel.shape)
    if found != expected or (source.bias is None) != (target.bias is None):
        refuse(
            peer,
            f"its part `{name}` was replaced: expected a kernel {expected} and "
            f"use_bias={target.bias is not None}, and found {found} and "
            f"use_bias={source.bias is not None}",
            "Convert its attention alone, and put the parts together in a custom layer.",
        )
    assign(target.kernel, source.kernel)
    if source.bias is not None:
        assign(target.bias, source.bias)
