"""The legend of axis letters, and the static shape checks that every kernel and layer shares.

| letter | axis |
| --- | --- |
| `B` | batch |
| `T` | query positions ("target") |
| `S` | key and value positions ("source") |
| `H` | heads |
| `G` | key and value heads, where groups of query heads share one; G divides H |
| `K` | features of one query or key head (`key_dim`) |
| `V` | features of one value head (`value_dim`) |
| `D` | features of a layer's input or output |
| `U` | hidden units of a score that is a small network |

Heads come before features in arrays, `(B, T, H, K)`, as in `keras.ops.dot_product_attention`, and
before positions in scores, `(B, H, T, S)`. Every einsum has these letters in lower case.
"""

import functools
import math

import keras
import numpy as np

_MOST_ELEMENTS = 2**40

# The largest count, window, rate or offset: the sum of two such positions must be int32 too.
LARGEST = 2**30 - 1


def check_rank(name, array, rank, axes):
    """Raises unless `array` has `rank` axes; `axes` is how the legend spells them."""
    if len(array.shape) != rank:
        raise ValueError(
            f"`{name}` must have {rank} axes, {axes}. Received: {name}.shape={tuple(array.shape)}"
        )


def check_sequence(shape, name="x"):
    """Raises unless a layer's input of that name is (B, T, D), with a known D."""
    if len(shape) != 3 or shape[-1] is None:
        raise ValueError(
            f"`{name}` must be (batch, positions, features) with a known number of features. "
            f"Received: {name}.shape={tuple(shape)}"
        )


def check_same(what, **sizes):
    """Raises when two statically known sizes, integers, differ. Unknown ones agree with any."""
    known = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if len(set(known.values())) > 1:
        received = ", ".join(f"{name}={size}" for name, size in known.items())
        raise ValueError(f"{what} must be equal. Received: {received}")


def check_heads(query, key, value):
    """Raises unless the three are `(B, T, H, K)`, `(B, S, G, K)` and `(B, S, G, V)`."""
    q, k, v = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    if len(q) == len(k) == len(v) == 4 and (q[0], *k[:3]) == (k[0], *v[:3]) and not q[2] % k[2]:
        return
    check_rank("query", query, 4, "(B, T, H, K)")
    check_rank("key", key, 4, "(B, S, G, K)")
    check_rank("value", value, 4, "(B, S, G, V)")
    check_same("Batch sizes", query=query.shape[0], key=key.shape[0], value=value.shape[0])
    check_same("Lengths of key and value", key=key.shape[1], value=value.shape[1])
    check_same("Numbers of heads", key=key.shape[2], value=value.shape[2])
    if query.shape[2] % key.shape[2]:
        raise ValueError(
            "Heads of `key` must be as many as those of `query`, or divide them. "
            f"Received: query={query.shape[2]}, key={key.shape[2]}"
        )


def check_pairs(name, shape, batch, heads, queries, keys):
    """Raises unless the shape of a mask or a bias broadcasts to (B, H, T, S)."""
    whats = "Batch sizes", "Numbers of heads", "Lengths", "Lengths"
    others = "query", "query", "query", "key"
    found, first = shape[-4:], 4 - len(shape[-4:])
    pairs = zip(whats[first:], others[first:], (batch, heads, queries, keys)[first:], strict=True)
    for size, (what, other, known) in zip(found, pairs, strict=True):
        if size != 1:
            check_same(f"{what} of the {name} and of `{other}`", **{name: size, other: known})


def is_array(value):
    """Whether a value is an array, tensor or symbol of any framework, not nested numbers."""
    return hasattr(value, "dtype")


def may_equal(first, second):
    """Whether two shapes may be equal: an unknown size agrees with any."""
    return len(first) == len(second) and all(
        not (isinstance(a, int) and isinstance(b, int)) or a == b
        for a, b in zip(first, second, strict=True)
    )


def check_scores(scores, query, key):
    """Raises unless what a score returned is (B, H, T, S), as far as sizes are known."""
    expected = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    found = tuple(scores.shape) if is_array(scores) else repr(scores)
    if isinstance(found, str) or not may_equal(found, expected):
        raise ValueError(
            f"A score must return scores (B, H, T, S), here {expected}. Received: {found}"
        )


def check_count(name, value, minimum=1, optional=False):
    """`value` as an int from `minimum` to `LARGEST`; or None, if `optional`, here and below."""
    if optional and value is None:
        return None
    if not _is_integer(value) or not minimum <= value <= LARGEST:
        beyond = _is_integer(value) and value > LARGEST
        bound = f"most {LARGEST}" if beyond else f"least {minimum}"
        raise ValueError(
            f"Received an invalid value for argument `{name}`, expected an integer of at {bound}. "
            f"Received: {name}={value!r}"
        )
    return int(value)


def check_grid(name, sizes):
    """`sizes` as a tuple of integers, one for each axis of a grid."""
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise ValueError(
            f"`{name}` must be the sizes of a grid's axes, such as (height, width). "
            f"Received: {name}={sizes!r}"
        )
    return tuple(check_count(name, size) for size in sizes)


def check_axes(name, value, grid, minimum=1):
    """A tuple with an integer for each axis of a grid, of a tuple or of one integer for all."""
    if not isinstance(value, (list, tuple)):
        return (check_count(name, value, minimum),) * len(grid)
    if len(value) != len(grid):
        raise ValueError(
            f"`{name}` must be an integer, or one for each of the {len(grid)} axes of the grid. "
            f"Received: {name}={value!r}"
        )
    return tuple(check_count(name, size, minimum) for size in value)


def check_integer(name, value, unsigned=False):
    """`value` as an int within int32, or uint32 if `unsigned`, as seeds are; or None."""
    if value is None:
        return None
    if not _is_integer(value):
        raise TypeError(f"`{name}` must be an integer or None. Received: {name}={value!r}")
    check_range(name, value, "uint32" if unsigned and value >= 0 else "int32")
    return int(value)


def check_range(name, values, dtype):
    """Raises if an integer or a NumPy array of integers has a value that `dtype` has not."""
    limits = np.iinfo(dtype)
    # As Python's integers: NumPy would round a limit of uint64 to a float.
    bounds = (int(np.min(values)), int(np.max(values))) if np.size(values) else (0, 0)
    if bounds[0] < limits.min or bounds[1] > limits.max:
        beyond = bounds[1] if bounds[1] > limits.max else bounds[0]
        raise ValueError(
            f"`{name}` must be within {dtype}, from {limits.min} to {limits.max}. "
            f"Received: {beyond}"
        )


def check_sizes(name, given, minimum=None):
    """An integer or a sequence of integers as a tuple; None stays None."""
    if given is None:
        return None
    sizes = (given,) if _is_integer(given) else given
    if (
        not isinstance(sizes, (list, tuple))
        or not sizes
        or not all(_is_integer(size) and (minimum is None or size >= minimum) for size in sizes)
    ):
        bound = "" if minimum is None else f" of at least {minimum}"
        raise ValueError(
            f"Invalid `{name}`: expected an integer{bound}, or a tuple or list of them. "
            f"Received: {name}={given!r}"
        )
    return tuple(int(size) for size in sizes)


def check_flag(name, value, optional=False, names=()):
    """`value` as a bool, or one of `names`; raises unless it is True, False or one of these."""
    if (optional and value is None) or (isinstance(value, str) and value in names):
        return value
    if not isinstance(value, (bool, np.bool_)):
        expected = "None, True or False" if optional else "True or False"
        expected = ", ".join([*map(repr, names), expected])
        raise TypeError(f"`{name}` must be {expected}. Received: {name}={value!r}")
    return bool(value)


def check_choice(name, value, choices):
    """Raises unless `value` is one of `choices`: strings, None, False."""
    if not isinstance(value, (str, bool, type(None))) or value not in choices:
        raise ValueError(f"`{name}` must be one of {choices}. Received: {name}={value!r}")
    return value


def _is_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_memory(name, shape):
    """Raises if an array has more elements than any memory: XLA would abort the process."""
    if math.prod(size for size in shape if size is not None) > _MOST_ELEMENTS:
        raise ValueError(
            f"`{name}` would have more than {_MOST_ELEMENTS} elements. Received sizes that give it "
            f"the shape {tuple(shape)}"
        )


def is_number(value):
    """Whether `value` is a finite real number (not a bool)."""
    numbers = (int, float, np.integer, np.floating)
    return isinstance(value, numbers) and not isinstance(value, bool) and math.isfinite(value)


def check_number(name, value, above=None, minimum=None, optional=False):
    """`value` as a Python number; raises unless finite, above `above`, at least `minimum`."""
    if optional and value is None:
        return None
    within = is_number(value) and (above is None or value > above)
    if not within or (minimum is not None and value < minimum):
        bound = "" if minimum is None else f" of at least {minimum}"
        bound = bound if above is None else f" above {above}"
        or_none = " or None" if optional else ""
        raise ValueError(
            f"`{name}` must be a finite number{bound}{or_none}. Received: {name}={value!r}"
        )
    return value.item() if isinstance(value, np.generic) else value


def check_rate(name, value):
    """`value` as a Python number; raises unless it is in [0, 1), like a dropout rate."""
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number in [0, 1). Received: {name}={value!r}")
    return value.item() if isinstance(value, np.generic) else value


# Checks of the kinds that many arguments have.
check_optional_count = functools.partial(check_count, optional=True)
check_positive = functools.partial(check_number, above=0)
check_optional_positive = functools.partial(check_number, above=0, optional=True)
check_seed = functools.partial(check_integer, unsigned=True)


def full_precision(dtype):
    """float32, or float64 for float64, whatever the precision of a layer's inputs."""
    return "float64" if dtype == "float64" else "float32"


def wide_policy(layer, wide):
    """The dtype policy of a layer or, if it is to be `wide` and computes in float16, float32."""
    wide = wide and layer.compute_dtype == "float16"
    return keras.dtype_policies.DTypePolicy("float32") if wide else layer.dtype_policy


def accumulation_dtype(*arrays):
    """The dtype in which scores and weights are computed: float32, or float64 for float64."""
    for array in arrays:
        if keras.backend.standardize_dtype(array.dtype) == "float64":
            return "float64"
    return "float32"


def check_lengths(query_shape, value_shape, key_shape):
    """Raises unless values and keys match: only their features may differ."""
    batches = {"query": query_shape[0], "value": value_shape[0], "key": key_shape[0]}
    check_same("Batch sizes", **batches)
    if not may_equal(value_shape[1:-1], key_shape[1:-1]):
        raise ValueError(
            "All dimensions of `value` and `key`, except the last one, must be equal. Received: "
            f"value_shape={value_shape} and key_shape={key_shape}"
        )


def visible_values(array):
    """The values of `array` as a NumPy array, or None while it is symbolic or being traced."""
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, keras.KerasTensor):
        return None
    try:
        return keras.ops.convert_to_numpy(array)
    # Each backend raises another error for a value that does not exist yet: NotImplementedError
    # or AttributeError in a TensorFlow graph, TracerArrayConversionError (a TypeError) in JAX,
    # RuntimeError for PyTorch's meta and fake tensors.
    except (NotImplementedError, AttributeError, TypeError, RuntimeError):
        return None
