"""Kernels: arrays in, arrays out; no weights, no layers. `attend` is the one entry."""

import keras

from keras_attention import masks, shapes
from keras_attention.kernels import reference
from keras_attention.kernels.reference import Attended

__all__ = ["KERNELS", "Attended", "attend", "choose"]

ops = keras.ops

KERNELS = ("auto", "reference")


def choose(kernel="auto"):
    """The kernel that would run, and why: a pair of strings."""
    if kernel not in KERNELS:
        raise ValueError(f"`kernel` must be one of {KERNELS}. Received: kernel={kernel!r}")
    if kernel == "auto":
        return "reference", "it is the only kernel there is, and gives every answer"
    return "reference", "it was asked for by name"


def attend(
    query,
    key,
    value,
    *,
    mask=None,
    bias=None,
    pattern=None,
    query_positions=None,
    key_positions=None,
    kernel="auto",
    **rest,
):
    """Attention by the kernel that `choose` names. See `reference.attend` for the other arguments.

    Args:
        mask: boolean, broadcasts to (B, H, T, S), or None.
        bias: an array that broadcasts to (B, H, T, S), or a function of the two position arrays
            that gives one.
        pattern: a function of the two position arrays giving a boolean array that broadcasts to
            (B, T, S), or None. It is given as a function so that kernels which look at few keys
            never build the rest.
        query_positions, key_positions: integer arrays (T,) or (B, T), and (S,) or (B, S). None
            counts from 0.
        kernel: one of `KERNELS`.
    """
    shapes.check_heads(query, key, value)
    choose(kernel)
    if mask is not None:
        shapes.check_mask(mask, query, key)
    if pattern is not None or callable(bias):
        if query_positions is None:
            query_positions = ops.arange(ops.shape(query)[1], dtype="int32")
        if key_positions is None:
            key_positions = ops.arange(ops.shape(key)[1], dtype="int32")
    if pattern is not None:
        allowed = pattern(query_positions, key_positions)
        # (T, S) or (B, T, S), to stand over the heads.
        allowed = ops.expand_dims(allowed, -3)
        mask = masks.both(mask, allowed if len(allowed.shape) == 4 else allowed[None])
    if callable(bias):
        bias = bias(query_positions, key_positions)
    return reference.attend(query, key, value, bias=bias, mask=mask, **rest)
