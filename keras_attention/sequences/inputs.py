"""The arguments of a call: checked before Keras converts them, and converted where Keras cannot."""

import functools
import inspect
import typing

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.sequences import masks, shapes


class Given:
    """The arguments of a call, as attributes."""

    # Not `types.SimpleNamespace`, of which PyTorch's compiler knows nothing.
    def __init__(self, **arguments):
        self.__dict__.update(arguments)

    if typing.TYPE_CHECKING:

        def __getattr__(self, name: str) -> typing.Any: ...


def arguments(function, *args, **kwargs):
    """All arguments of a call of `function`, defaults included, as attributes."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return Given(**bound.arguments)


def of_call(layer, args, kwargs):
    """The positional and named arguments of a call of `layer`, checked and converted.

    Keras casts every float argument to the compute dtype, and an array once for each role. A layer
    with `_unrounded` arguments has its own conversion: these, such as a bias or a cache, are not
    cast, and one array stays one tensor.
    """
    for n, given in enumerate(args):
        if given is not None:
            _check_dense(layer, given, first=n == 0)
    for name, given in kwargs.items():
        if name.endswith("mask") or (given is not None and type(given) is not bool):
            _check_named(layer, name, given, first=not args)
    if layer._unrounded is None:
        return args, kwargs
    known: dict = {}
    found, named = [], {}
    names = layer.call_signature_parameters
    # By numbers: PyTorch's compiler cannot name what an iterator over `args` gave.
    for n in range(len(args)):
        autocast = layer.autocast and not (n < len(names) and names[n] in layer._unrounded)
        found.append(converted(layer, args[n], autocast, known))
    for name, given in kwargs.items():
        autocast = layer.autocast and name not in layer._unrounded
        named[name] = converted(layer, given, autocast, known)
    return found, named


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
                check_within(name, array)
    _check_dense(layer, given, first and name == names[0])


def _check_dense(layer, given, first):
    """Raises unless tensors are dense and the first argument, unlike a cache, is no dict."""
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


def converted(layer, given, autocast, known):
    """An argument as a tensor with the mask that it carries, or a structure of them."""
    if given is None or type(given) is bool:
        return given
    if keras.tree.is_nested(given):
        convert = functools.partial(converted, layer, autocast=autocast, known=known)
        return keras.tree.map_structure(convert, given)
    if (id(given), autocast) not in known:
        tensor = layer.dtype_policy.convert_input(given, autocast, layer.input_dtype)
        if tensor is not given:
            masks.carry(tensor, masks.implicit(given))
        known[id(given), autocast] = tensor
    return known[id(given), autocast]


def three_shapes(query_shape, value_shape=None, key_shape=None):
    """Shapes of query, value and key from any form of the three."""
    if query_shape and isinstance(query_shape[0], (list, tuple)):
        query_shape, value_shape, key_shape = unpack("query_shape", query_shape)
    value_shape = query_shape if value_shape is None else value_shape
    key_shape = value_shape if key_shape is None else key_shape
    return tuple(query_shape), tuple(value_shape), tuple(key_shape)


def floats(tensors, dtype):
    """The tensors, integers and booleans cast to `dtype`; one in several roles stays one.

    The output of attention has the dtype of the values, and integers would truncate the sums.
    """
    cast = {}
    for x in tensors:
        if "float" not in keras.backend.standardize_dtype(x.dtype):
            cast[id(x)] = ops.cast(x, dtype)
    return tuple([cast.get(id(x), x) for x in tensors]) if cast else tensors


def unpack(name, listed):
    """Query, value and key, the last of which may be None, of a list."""
    if not 2 <= len(listed) <= 3:
        raise ValueError(
            f"`{name}` as a list must be [query, value] or [query, value, key]. Received a list of "
            f"length {len(listed)}"
        )
    return tuple(listed) if len(listed) == 3 else (*listed, None)


def check_pairs(name, array):
    """Raises unless an array of pairs has 2 to 4 axes."""
    if not 2 <= len(array.shape) <= 4:
        raise ValueError(
            f"`{name}` must be (T, S), (B, T, S) or (B, H, T, S). "
            f"Received: {name}.shape={tuple(array.shape)}"
        )


def check_bias(name, array, mask="attention_mask"):
    """Raises if a bias is a mask: added, True would be a 1. `mask` is the argument for one."""
    if keras.backend.standardize_dtype(array.dtype) == "bool":
        raise TypeError(
            f"`{name}` must be numbers to add to the scores. Received: dtype bool. "
            f"Pass a mask as `{mask}`."
        )


def four_axes(name, array):
    """An array of pairs, (T, S), (B, T, S) or (B, H, T, S), with all four axes."""
    check_pairs(name, array)
    rank = len(array.shape)
    if rank == 2:
        return array[None, None]
    return array[:, None] if rank == 3 else array


def check_fits(name, array, batch, heads, queries, keys):
    """Raises unless an `attention_mask` or `attention_bias` broadcasts to (B, H, T, S)."""
    check_pairs(name, array)
    shape = tuple(array.shape)
    shape = {2: (1, 1, *shape), 3: (*shape[:1], 1, *shape[1:])}.get(len(shape), shape)
    shapes.check_pairs(name.removeprefix("attention_"), shape, batch, heads, queries, keys)


def check_not_padding(attention_mask, query):
    """Raises if an `attention_mask` of two axes cannot be (T, S), such as a padding mask."""
    shape, queries = tuple(attention_mask.shape), query.shape[1]
    if len(shape) == 2 and queries is not None and shape[0] not in (None, 1, queries):
        raise ValueError(
            f"An `attention_mask` of two axes is (T, S), here {queries} queries, and the same for "
            "all rows. Pass padding, (B, S) or (B, T), as `value_mask` or `query_mask`. "
            f"Received: attention_mask.shape={shape}"
        )


def pair(name, given, query, value, one_sequence=False):
    """Integers of query and key positions, from one array for self-attention or a pair.

    Either position may be None. Returns two int32 tensors, or None without `segment_ids`.
    """
    if given is None:
        return (None, None) if name == "positions" else None
    # A list of rows is one array. A pair is a tuple, or the list of tensors that Keras makes of it.
    listed = isinstance(given, (list, tuple)) and len(given) == 2
    if isinstance(given, list):
        listed = listed and all(part is None or shapes.is_array(part) for part in given)
    one_sequence = one_sequence or query is value
    if not listed and not one_sequence:
        raise ValueError(
            f"`{name}` must be a pair, for query and key, when the two are not one sequence. "
            f"Received: {name}={given!r}"
        )
    of_query, of_key = given if listed else (given, given)
    if name == "segment_ids" and (of_query is None or of_key is None):
        raise ValueError(
            f"`segment_ids` must number both queries and keys. Received: segment_ids={given!r}"
        )
    found = integers(name, "query", of_query, query)
    alike = one_sequence and of_key is of_query
    return found, found if alike else integers(name, "value", of_key, value)


def integers(name, role, array, like):
    """Integers (T,) or (B, T) (segments only the latter), of the length of `like`; or None."""
    if array is None:
        return None
    # Segments are only compared, and may be numbers outside int32.
    check_within(name, array, None if name == "segment_ids" else "int32")
    if not isinstance(array, keras.KerasTensor):
        array = ops.convert_to_tensor(array)
    dtype = keras.backend.standardize_dtype(array.dtype)
    if "int" not in dtype:
        raise TypeError(f"`{name}` must be integers. Received dtype {dtype} for `{role}`")
    rank = len(array.shape)
    if rank != 2 and (rank != 1 or name == "segment_ids"):
        expected = "(B, T)" if name == "segment_ids" else "(T,) or (B, T)"
        raise ValueError(
            f"`{name}` must be {expected} for each sequence. "
            f"Received shape {tuple(array.shape)} for `{role}`"
        )
    shapes.check_same(
        f"Lengths of `{role}` and its {name}", **{role: like.shape[1], name: array.shape[-1]}
    )
    if rank == 2 and array.shape[0] != 1:
        check = {role: like.shape[0], name: array.shape[0]}
        shapes.check_same(f"Batch sizes of `{role}` and its {name}", **check)
    if name == "segment_ids" or isinstance(array, keras.KerasTensor):
        return array
    return ops.cast(array, "int32")


def check_within(name, array, dtype=None):
    """Raises if an integer of `array` that is visible would overflow in `dtype`.

    None is the dtype in which the backend stores it: JAX may store int64 as int32.
    """
    if ops.is_tensor(array):
        kind = keras.backend.standardize_dtype(array.dtype)
        if dtype is None or kind not in ("int64", "uint32", "uint64"):
            return
    values = shapes.visible_values(array)
    if values is not None and values.dtype.kind in "iu":
        stored = dtype or ops.convert_to_tensor(np.zeros(0, values.dtype)).dtype
        shapes.check_range(name, values, keras.backend.standardize_dtype(stored))
