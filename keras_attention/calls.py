"""What a layer is called with: checked before Keras converts it, and converted where Keras cannot.

Keras casts every float argument of a call to the compute dtype. A bias in bfloat16 has three
digits, and a cache has its own dtype; and Keras casts an array once per role, so that a sequence
that attends to itself would be two. A layer with `_unrounded` arguments has its own conversion: the
arguments of these names are not cast, and one array stays one tensor.
"""

import keras
import numpy as np

from keras_attention import inputs, masks
from keras_attention.backend import backend


def read(layer, args, kwargs):
    """The positional and named arguments of a call of `layer`, checked and converted."""
    for n, given in enumerate(args):
        if given is not None:
            _check_dense(layer, given, first=n == 0)
    for name, given in kwargs.items():
        if name.endswith("mask") or (given is not None and type(given) is not bool):
            _check_named(layer, name, given, first=not args)
    if layer._unrounded is None:
        return args, kwargs
    known: dict = {}
    # By numbers: PyTorch's compiler cannot name what an iterator over `args` gave.
    args = [_converted(layer, args[n], layer.autocast, known) for n in range(len(args))]
    named = {}
    for name, given in kwargs.items():
        autocast = layer.autocast and name not in layer._unrounded
        named[name] = _converted(layer, given, autocast, known)
    return args, named


def _check_named(layer, name, given, first):
    """Raises for a name that the masks of other libraries have, and for integers that overflow."""
    names = layer.call_signature_parameters
    if layer._masks is not None and name.endswith("mask") and name not in names:
        raise TypeError(
            f"{type(layer).__name__} takes no `{name}`. Its masks are {layer._masks}, "
            f"boolean, True = attend. Received: {name} of type {type(given).__name__}"
        )
    if layer._unrounded is not None and name in ("positions", "segment_ids"):
        for array in keras.tree.flatten(given):
            if isinstance(array, np.ndarray):
                # JAX would store int64 as int32, with other values.
                inputs.check_within(name, array)
    _check_dense(layer, given, first and name == names[0])


def _check_dense(layer, given, first):
    """Raises unless tensors are dense, and the first argument no dict.

    What comes of others, most of which fail within a framework, after a layer is built, depends on
    the layer's arguments. A dict may be a keyword argument, such as a cache.
    """
    if type(given) in (list, tuple):
        for element in given:
            _check_dense(layer, element, first)
        return
    advice = None
    if isinstance(given, dict):
        # A class of a user's own may have a `call` that takes one.
        if first and type(layer).call.__module__.startswith(f"{__package__}."):
            advice = "Pass each tensor of a dict as an argument, or as an element of a list"
    elif not layer._takes_any_layout:
        advice = backend.instead_of(given)
    if advice is not None:
        raise TypeError(
            f"{type(layer).__name__} takes dense tensors. {advice}. "
            f"Received: a {type(given).__name__}"
        )


def _converted(layer, given, autocast, known):
    """An argument as a tensor with the mask that it carries, or a structure of them."""
    if given is None or type(given) is bool:
        return given
    if keras.tree.is_nested(given):
        return keras.tree.map_structure(lambda x: _converted(layer, x, autocast, known), given)
    if (id(given), autocast) not in known:
        tensor = layer.dtype_policy.convert_input(given, autocast, layer.input_dtype)
        if tensor is not given:
            masks.carry(tensor, masks.implicit(given))
        known[id(given), autocast] = tensor
    return known[id(given), autocast]
