"""What the converters share: recognising a layer, refusing one, and copying a projection."""

import keras
import numpy as np


def refuse(peer, why, instead):
    """Raises what every converter raises: what it was given, why that cannot be, what to do."""
    raise ValueError(f"Cannot convert {describe(peer)}: {why}. {instead}")


def describe(peer):
    """The class of `peer`, and its name where it has one."""
    cls, name = type(peer), getattr(peer, "name", None)
    named = f" named {name!r}" if isinstance(name, str) else ""
    return f"a {cls.__module__.split('.')[0]} {cls.__name__}{named}"


def converter(peer, package, converters):
    """The function for the class of `peer`, of those that `converters` has by its name.

    The class itself: a subclass may compute something else.
    """
    cls = type(peer)
    if not cls.__module__.startswith(f"{package}.") or cls.__name__ not in converters:
        refuse(
            peer,
            f"expected one of {package}: {', '.join(sorted(converters))}",
            "A subclass may compute something else, and of a model or a stack, convert the layers.",
        )
    return converters[cls.__name__]


def check_weights(layer):
    """Refuses a Keras layer that has no weights yet, or whose weights are quantized."""
    if not layer.built:
        refuse(layer, "it has no weights yet", "Call or build it first.")
    parts = [layer, *layer._flatten_layers(include_self=False)]
    if any(getattr(part, "quantization_mode", None) is not None for part in parts):
        refuse(
            layer,
            "its weights are quantized",
            "Convert the layer as it was before, and quantize the new one.",
        )


def common(layer):
    """The constructor arguments of any Keras layer."""
    return {"name": layer.name, "trainable": layer.trainable, "dtype": layer.dtype_policy}


def assign(variable, array):
    """Puts an array, or a variable of Keras, into a variable of the same number of elements."""
    if not isinstance(array, np.ndarray):
        array = keras.ops.convert_to_numpy(array)
    variable.assign(np.reshape(array, variable.shape))


def assign_dense(dense, kernel, bias=None):
    """Puts a kernel, (…, features of the output) as Keras has it, and a bias into a projection."""
    assign(dense.kernel, kernel)
    if bias is not None:
        assign(dense.bias, bias)


def copy_dense(source, target):
    """The kernel, with what LoRA adds to it, and the bias of a Keras projection."""
    assign_dense(target, source.kernel, source.bias)


def copy_heads(source, target):
    """The projections of a Keras attention layer with heads."""
    for name in ("query", "key", "value", "gate", "output"):
        dense = getattr(source, f"_{name}_dense", None)
        if dense is not None:
            copy_dense(dense, getattr(target, f"_{name}_dense"))


def copy_norm(source, target):
    """The scale and offset of a Keras LayerNormalization."""
    assign(target.gamma, source.gamma)
    assign(target.beta, source.beta)
