"""Reading the arguments of a call: checked before Keras converts them, and converted where Keras
cannot; query, value and key in any form, and arrays of pairs.
"""

import inspect
import typing

import keras
import numpy as np

from keras_attention import masks, shapes
from keras_attention.backend import backend

ops = keras.ops


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
        found.append(_converted(layer, args[n], autocast, known))
    for name, given in kwargs.items():
        autocast = layer.autocast and name not in layer._unrounded
        named[name] = _converted(layer, given, autocast, known)
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


def three_shapes(query_shape, value_shape=None, key_shape=None):
    """Shapes of query, value and key from any form of the three."""
    if query_shape and isinstance(query_shape[0], (list, tuple)):
        query_shape, value_shape, key_shape = _unpack("query_shape", query_shape)
    value_shape = query_shape if value_shape is None else value_shape
    key_shape = value_shape if key_shape is None else key_shape
    return tuple(query_shape), tuple(value_shape), tuple(key_shape)


def check_one_sequence(mask, query, value):
    """Raises unless `mask` is unambiguous: the padding of all inputs."""
    if mask is None or mask is False:
        return
    listed = isinstance(query, (list, tuple))
    if listed != isinstance(mask, (list, tuple)):
        received = f"a {type(query).__name__} and a mask of type {type(mask).__name__}"
    elif value is not None:
        received = "a `value` beside it"
    elif not listed and len(query.shape) == 3 and len(mask.shape) != 2:
        received = f"mask.shape={tuple(mask.shape)}"
    else:
        return
    raise ValueError(
        "`mask` must be the padding (B, T) of one sequence that attends to itself, or a list of "
        "masks for a list of tensors. Pass padding of two sequences as `query_mask` (B, T) and "
        "`value_mask` (B, S), and a mask of pairs, (T, S), (B, T, S) or (B, H, T, S), as "
        f"`attention_mask`. Received: {received}"
    )


class Inputs(typing.NamedTuple):
    """Query, value and key of a call, and what masks them.

    Args:
        query, value, key: floats, with zeros for padding.
        query_mask, key_mask: padding (B, T) and (B, S), True = a real token; or None.
        attention_mask: boolean, of pairs, or None.
        attention_bias: the numbers to add, as given, or None.
        seen: (B, S), the keys that are neither padding nor left out by all queries; or None.
        sequences: query and value as they came: zeros may make two tensors of one sequence.
    """

    query: typing.Any
    value: typing.Any
    key: typing.Any
    query_mask: typing.Any = None
    key_mask: typing.Any = None
    attention_mask: typing.Any = None
    attention_bias: typing.Any = None
    seen: typing.Any = None
    sequences: typing.Any = None


def read(tensors, explicit, mask, attention_mask, attention_bias, dtype):
    """The `Inputs` of a call.

    Args:
        tensors: query, value and key in any form that a call takes.
        explicit: the masks passed for the three.
        mask: Keras's name for the mask of a layer's inputs, or None or False for none.
        attention_mask, attention_bias: of pairs, or None.
        dtype: that integers and booleans are cast to.
    """
    found, (of_query, of_value, of_key) = sequences(tensors, explicit, mask)
    of_key = of_value if of_key is None else masks.both(of_value, of_key)
    seen = of_key
    if attention_mask is not None:
        attention_mask = masks.boolean("attention_mask", attention_mask)
        seen = masks.both(seen, masked_for_all(attention_mask, found[2]))
    query, value, key = floats(found, dtype)
    if of_query is not None or seen is not None:
        query, value, key = without_padding((query, value, key), (of_query, seen, seen))
    return Inputs(
        *(query, value, key, of_query, of_key, attention_mask, attention_bias, seen, found[:2])
    )


def sequences(tensors, explicit, mask=None):
    """Query, value and key from any form of the three, and the mask or None of each."""
    if mask is not None and mask is not False:
        of_query = query_mask(explicit[0], mask, *tensors[:2])
        explicit = (of_query, *explicit[1:])
    return three_inputs(tensors, explicit)


def query_mask(query_mask, mask, query, value):
    """`query_mask` combined with `mask`, Keras's name for the mask of a layer's inputs."""
    check_one_sequence(mask, query, value)
    if isinstance(mask, (list, tuple)):
        if query_mask is not None and not isinstance(query_mask, (list, tuple)):
            return [masks.both(mask[0], query_mask), *mask[1:]]
        return mask
    if mask is masks.implicit(query):
        # Keras passes the carried mask, which is read from the tensor anyway.
        return query_mask
    return masks.both(masks.boolean("query_mask", query_mask), masks.boolean("mask", mask))


def three_inputs(tensors, explicit):
    """Query, value and key from any form of the three, and their masks.

    A mask combines the one that the tensor carries and the one passed for it.
    """
    query, value, key = tensors
    query_mask, value_mask, key_mask = explicit
    if isinstance(query, (list, tuple)):
        if value is not None or key is not None:
            raise ValueError(
                "Pass query, value and key either as one list or as three arguments. Received: a "
                "list, and `value` or `key` beside it"
            )
        query, value, key = _unpack("query", query)
        if isinstance(query_mask, (list, tuple)):
            # Keras passes the masks that a list of tensors carries as a list.
            listed = _unpack("query_mask", query_mask)
            query_mask = listed[0]
            value_mask = masks.both(listed[1], value_mask)
            key_mask = masks.both(listed[2], key_mask)
    if value is None:
        # One tensor in both roles: its query mask is also its value mask.
        value = query
        value_mask = query_mask if value_mask is None else masks.both(query_mask, value_mask)
    tensors = (query, value, value if key is None else key)
    of_query = masks.padding(query, query_mask, "query", "query_mask")
    of_value = masks.padding(value, value_mask, "value", "value_mask")
    of_key = None
    if tensors[2] is not value or key_mask is not None:
        of_key = masks.padding(tensors[2], key_mask, "key", "key_mask")
    return tensors, (of_query, of_value, of_key)


def floats(tensors, dtype):
    """The tensors, integers and booleans cast to `dtype`; one in several roles stays one.

    The output of attention has the dtype of the values, and integers would truncate the sums.
    """
    cast = {}
    for x in tensors:
        if "float" not in keras.backend.standardize_dtype(x.dtype):
            cast[id(x)] = ops.cast(x, dtype)
    return tuple([cast.get(id(x), x) for x in tensors]) if cast else tensors


def without_padding(tensors, padding):
    """The tensors with zeros for their padding, by a mask (B, T) or None for each.

    One in several roles stays one where its masks are one.
    """
    cleared = {}
    for x, mask in zip(tensors, padding, strict=True):
        if mask is not None and (id(x), id(mask)) not in cleared:
            cleared[id(x), id(mask)] = masks.clear(x, mask)
    if not cleared:
        return tensors
    found = zip(tensors, padding, strict=True)
    return tuple([cleared.get((id(x), id(mask)), x) for x, mask in found])


def masked_for_all(attention_mask, key):
    """Of an `attention_mask` that is the same for all heads and queries, the mask (B, S); or None.

    Finding keys that all queries leave out in other masks would cost more than the zeros.
    """
    if not 2 <= len(attention_mask.shape) <= 4 or len(key.shape) != 3:
        return None
    mask = four_axes("attention_mask", attention_mask)
    fits = mask.shape[0] in (1, key.shape[0]) and mask.shape[3] == key.shape[1]
    return mask[:, 0, 0] if fits and mask.shape[1] == mask.shape[2] == 1 else None


def _unpack(name, listed):
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


def pair(name, given, query, value):
    """Integers of query and key positions, from one array for self-attention or a pair.

    Either position may be None. Returns two int32 tensors, or None without `segment_ids`.
    """
    if given is None:
        return (None, None) if name == "positions" else None
    # A list of rows is one array. A pair is a tuple, or the list of tensors that Keras makes of it.
    listed = isinstance(given, (list, tuple)) and len(given) == 2
    if isinstance(given, list):
        listed = listed and all(part is None or shapes.is_array(part) for part in given)
    if not listed and query is not value:
        raise ValueError(
            f"`{name}` must be a pair, for query and key, when the two are not one sequence. "
            f"Received: {name}={given!r}"
        )
    of_query, of_key = given if listed else (given, given)
    if name == "segment_ids" and (of_query is None or of_key is None):
        raise ValueError(
            f"`segment_ids` must number both queries and keys. Received: segment_ids={given!r}"
        )
    return integers(name, "query", of_query, query), integers(name, "value", of_key, value)


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
