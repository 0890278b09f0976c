"""Kernels: arrays in, arrays out; no weights, no layers. `attend` is the one entry."""

import keras

from keras_attention import masks, shapes
from keras_attention.kernels import places, reference
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
    segments=None,
    query_positions=None,
    key_positions=None,
    offset=0,
    kernel="auto",
    **rest,
):
    """Attention by the kernel that `choose` names. See `reference.attend` for the other arguments.

    Args:
        mask: boolean, broadcasts to (B, H, T, S), or None.
        bias: an array that broadcasts to (B, H, T, S), a function of the two position arrays that
            gives one, or a list of either, which are added up.
        pattern: a function of the two position arrays giving a boolean array that broadcasts to
            (B, T, S), or None. It is given as a function so that kernels which look at few keys
            never build the rest.
        segments: None, or a pair of integer arrays (B, T) and (B, S): a query sees only keys of
            the same number.
        query_positions, key_positions: integer arrays (T,) or (B, T), and (S,) or (B, S). None
            counts from `offset`, and from 0.
        offset: position of the first query, a number or one for each row, (B,).
        kernel: one of `KERNELS`.
    """
    shapes.check_heads(query, key, value)
    choose(kernel)
    if mask is not None:
        shapes.check_pairs("mask", mask, query, key)
    positions = places.place(
        ops.shape(query)[1], ops.shape(key)[1], query_positions, key_positions, offset
    )
    if pattern is not None:
        allowed = pattern(positions.query, positions.key)
        # (T, S) or (B, T, S), to stand over the heads.
        allowed = ops.expand_dims(allowed, -3)
        mask = masks.both(mask, allowed if len(allowed.shape) == 4 else allowed[None])
    if segments is not None:
        queries, keys = segments
        mask = masks.both(mask, ops.equal(queries[:, None, :, None], keys[:, None, None, :]))
    bias = _sum(bias, positions)
    if bias is not None:
        shapes.check_pairs("bias", bias, query, key)
    return reference.attend(query, key, value, bias=bias, mask=mask, positions=positions, **rest)


def _sum(bias, positions):
    """One array of a bias in any of the forms that `attend` takes, or None."""
    parts = bias if isinstance(bias, (list, tuple)) else [bias]
    total = None
    for part in parts:
        if callable(part) and not ops.is_tensor(part):
            part = part(positions.query, positions.key)
        if part is not None:
            total = part if total is None else total + part
    return total
