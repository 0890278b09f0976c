"""Boolean masks: reading the ones Keras carries on tensors, checking the ones users pass.

True means attend. Nothing here modifies its inputs; `carry` marks only outputs that
the calling layer has just created.
"""

import functools

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.sequences import shapes

# The Keras mask that a tensor carries, or None.
implicit = keras_private.get_keras_mask


def carry(tensor, mask):
    """Lets a newly created `tensor` carry `mask`, and returns it."""
    if mask is not None:
        keras_private.set_keras_mask(tensor, mask)
    return tensor


def both(first, second):
    """`first & second`, where None is the mask that is True everywhere."""
    if first is None:
        return second
    if second is None:
        return first
    return ops.logical_and(first, second)


def every(found):
    """All of the masks, combined with AND; None without any."""
    return functools.reduce(both, found, None)


def padding(tensor, passed, name="x", mask_name="mask", features=True):
    """The mask that a tensor carries and the one passed for it, combined; None without any.

    Args:
        tensor: (B, T, D), or with more axes of positions; without D, as ids, with `features` False.
        passed: boolean (B, T) or (1, T), or None.
        name, mask_name: of the two arguments.

    Raises:
        ValueError: `passed` or the carried mask has another shape, or is not of 0 and 1.
    """
    carried = implicit(tensor)
    if carried is None and passed is None:
        return None
    mask = boolean(mask_name, passed)
    # Keras itself passes the carried mask; applying it twice would cost an operation.
    if carried is not None and carried is not passed:
        mask = both(boolean(mask_name, carried), mask)
    check_axes(mask, tensor.shape[:-1] if features else tensor.shape, name, mask_name)
    return mask


def passed_on(layer, x, previous_mask=None):
    """The `compute_mask` of a layer whose output has the positions of `x`, with the mask checked.

    Where a functional model is made, nothing else sees a mask that `x` carries.
    """
    if previous_mask is not None:
        check_axes(previous_mask, x.shape[:-1][: len(previous_mask.shape)])
    return previous_mask


def whole(mask, tensor):
    """(B, T), for a tensor (B, T, D), of a mask (B, T) or (1, T), or of none."""
    every = ops.ones_like(tensor[..., 0], dtype="bool")
    return every if mask is None else ops.logical_and(every, mask)


def may_fit(mask, length):
    """Whether a mask may be that of a sequence (B, T, D) of a length, None if it is unknown."""
    known = [size for size in (*mask.shape[1:2], length) if isinstance(size, int) and size != 1]
    return len(mask.shape) == 2 and len(set(known)) < 2


def check_axes(mask, axes, name="x", mask_name="mask"):
    """Raises unless a mask has these axes, those of positions of the tensor of that name."""
    meaning = "(batch, positions)" if len(axes) == 2 else f"as `{name}` without its channels"
    shapes.check_rank(mask_name, mask, len(axes), meaning)
    for axis, (expected, size) in enumerate(zip(axes, mask.shape, strict=True)):
        if axis or size != 1:
            what = ("Batch sizes", "Lengths")[axis] if axis < 2 else f"Sizes of axis {axis}"
            shapes.check_same(
                f"{what} of `{name}` and its mask", **{name: expected, mask_name: size}
            )


def of_pairs(query_mask, key_mask, attention_mask):
    """Masks (B, T), (B, S) and (B, H, T, S), or None, as a tuple that broadcasts to pairs."""
    found = []
    if query_mask is not None:
        found.append(ops.expand_dims(query_mask, (1, 3)))
    if key_mask is not None:
        found.append(ops.expand_dims(key_mask, (1, 2)))
    if attention_mask is not None:
        found.append(attention_mask)
    return tuple(found)


def clear(tensor, mask):
    """`tensor` (B, T, …) with zeros where its padding mask (B, T) is False; None masks nothing.

    Padding may contain any values. Its weight is 0, but 0 · NaN is NaN, in a sum of values as in
    the gradient of a kernel that multiplies it, so its values must not get that far.
    """
    if mask is None:
        return tensor
    return backend.clear(tensor, mask)


def boolean(name, mask):
    """`mask` as a boolean tensor; an error unless it is boolean, or its values are 0 and 1.

    A float mask of 0 and -1e9, meant to be added to scores, turns into its own opposite when it is
    cast to boolean. So float and integer values are checked where they can be seen; a float mask
    whose values are not known yet (a symbolic input, a traced function) is refused by its dtype.
    """
    if mask is None:
        return None
    if not shapes.is_array(mask):
        mask = np.asarray(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask if ops.is_tensor(mask) else ops.convert_to_tensor(mask)
    values = shapes.visible_values(mask)
    if values is None and "float" in dtype:
        raise TypeError(
            f"`{name}` must be boolean, True = attend. Received dtype {dtype}, whose values cannot "
            f"be checked before the model runs: give the input dtype='bool', or pass "
            f"`keras.ops.cast({name}, 'bool')` of zeros and ones. A mask to be added to the scores "
            "(0 and a large negative number) is a bias, not a mask: pass `mask == 0` instead."
            f"{_or_bias(name)}"
        )
    if values is not None and not np.isin(values, (0, 1)).all():
        strange = values[~np.isin(values, (0, 1))].ravel()[0]
        raise ValueError(
            f"`{name}` must be boolean, True = attend (zeros and ones are taken for False and "
            f"True). Received dtype {dtype} with the value {strange}. A mask to be added to the "
            "scores (0 and a large negative number) is a bias, not a mask: pass `mask == 0`."
            f"{_or_bias(name)}"
        )
    return ops.cast(mask, "bool")


def _or_bias(name):
    """Advice on a mask of numbers, if a call has an argument for it."""
    return " Pass other numbers as `attention_bias`." if name == "attention_mask" else ""
