"""Kernels: arrays in, arrays out; no weights, no layers. `attend` is the one entry."""

import keras

from keras_attention import shapes
from keras_attention.kernels import banded, blockwise, fused, one_query, parts, places, reference
from keras_attention.kernels.reference import Attended
from keras_attention.kernels.task import Between, Task

__all__ = ["KERNELS", "Attended", "Between", "attend", "explain"]

ops = keras.ops


def attend(
    query,
    key,
    value,
    *,
    mask=None,
    bias=None,
    query_positions=None,
    key_positions=None,
    offset=0,
    kernel="auto",
    **rest,
):
    """Attention by the kernel that `choose` names. See `reference.attend` for the other arguments.

    Args:
        mask: boolean, broadcasts to (B, H, T, S); or a list of such; or None.
        bias: an array that broadcasts to (B, H, T, S), a `Between` or another function of the two
            position arrays that gives one, or a list of either, which are added up.
        query_positions, key_positions: integer arrays (T,) or (B, T), and (S,) or (B, S). None
            counts from `offset`, and from 0.
        offset: position of the first query, a number or one for each row, (B,).
        kernel: one of `KERNELS`.
        **rest: what else a `Task` is made of. `pattern` is a function of the two position arrays
            giving a boolean array that broadcasts to (B, T, S), so that kernels which look at few
            keys never build the rest; `segments` a pair of integer arrays (B, T) and (B, S), a
            query seeing only keys of the same number.
    """
    task = _task(query, key, value, mask, bias, query_positions, key_positions, offset, rest)
    name, _ = choose(task, kernel)
    return _KERNELS[name](task)


def explain(
    query,
    key,
    value,
    *,
    mask=None,
    bias=None,
    query_positions=None,
    key_positions=None,
    offset=0,
    kernel="auto",
    **rest,
):
    """What `choose` says of the arguments of `attend`."""
    task = _task(query, key, value, mask, bias, query_positions, key_positions, offset, rest)
    return choose(task, kernel)


def _task(query, key, value, mask, bias, query_positions, key_positions, offset, rest):
    """A `Task` of the arguments of `attend`."""
    shapes.check_heads(query, key, value)
    masks = tuple(_four_axes(array) for array in _listed(mask))
    for array in masks:
        shapes.check_pairs("mask", array, query, key)
    arrays, between = [], []
    for part in _listed(bias):
        if isinstance(part, Between):
            between.append(part)
        elif callable(part) and not ops.is_tensor(part):
            between.append(Between(part))
        else:
            shapes.check_pairs("bias", part, query, key)
            arrays.append(_four_axes(part))
    positions = places.place(
        ops.shape(query)[1], ops.shape(key)[1], query_positions, key_positions, offset
    )
    return Task(
        query,
        key,
        value,
        masks=masks,
        biases=tuple(arrays),
        between=tuple(between),
        positions=positions,
        **rest,
    )


def _listed(given):
    parts = given if isinstance(given, (list, tuple)) else [given]
    return [part for part in parts if part is not None]


def _four_axes(array):
    array = ops.convert_to_tensor(array)
    for _ in range(4 - len(array.shape)):
        array = array[None]
    return array


def _by_reference(task):
    """All of a task by the definition, from whole arrays."""
    return reference.attend(
        task.query,
        task.key,
        task.value,
        scale=task.scale,
        score=task.score,
        relative_keys=task.relative_keys,
        relative_values=task.relative_values,
        positions=task.positions,
        soft_cap=task.soft_cap,
        bias=task.whole_bias(),
        mask=task.whole_mask(),
        sink=task.sink,
        normalization=task.normalization,
        gain=task.gain,
        dropout=task.dropout,
        seed=task.seed,
        return_scores=task.return_scores,
    )


def _by_blocks(task):
    return _finished(task, *blockwise.attend(task))


def _by_one_query(task):
    return _finished(task, *one_query.attend(task))


def _by_bands(task):
    # Here, not in each part: the sum of their gradients is to be rounded once.
    wide = shapes.accumulation_dtype(task.query, task.key, task.value)
    given = keras.backend.standardize_dtype(task.value.dtype)
    task = task.but(
        query=ops.cast(task.query, wide),
        key=ops.cast(task.key, wide),
        value=ops.cast(task.value, wide),
    )
    found = [
        (blockwise if banded.why_not(part) else banded).attend(part) for part in parts.of(task)
    ]
    attended = _finished(task, *parts.together(found))
    return attended._replace(output=ops.cast(attended.output, given))


def _finished(task, output, normalizer):
    """What a kernel returns, of an output and its normalizer."""
    if task.sink is not None:
        # One more key, whose value is zero, takes its share.
        sink = reference.finite(ops.cast(task.sink, normalizer.dtype))[:, None]
        share = ops.sigmoid(normalizer - sink)
        output = output * ops.transpose(share, (0, 2, 1))[..., None]
    reached = normalizer > blockwise.REACHED if task.restricted else None
    dtype = keras.backend.standardize_dtype(task.value.dtype)
    return Attended(ops.cast(output, dtype), None, reached)


_KERNELS = {
    "reference": _by_reference,
    "fused": fused.attend,
    "one_query": _by_one_query,
    "blockwise": _by_blocks,
    "banded": _by_bands,
}
KERNELS = ("auto", *_KERNELS)


def choose(task, kernel="auto"):
    """The kernel that would run, and why: a pair of strings."""
    if kernel not in KERNELS:
        raise ValueError(f"`kernel` must be one of {KERNELS}. Received: kernel={kernel!r}")
    cannot = {"blockwise": _needs_reference(task)}
    cannot["fused"] = cannot["blockwise"] or fused.why_not(task)
    cannot["one_query"] = cannot["blockwise"] or one_query.why_not(task)
    cannot["banded"] = cannot["blockwise"] or _no_bands(task)
    if kernel != "auto":
        if cannot.get(kernel):
            raise ValueError(
                f"The kernel {kernel!r} cannot do this: {cannot[kernel]}. Pass kernel='auto'. "
                f"Received: kernel={kernel!r}"
            )
        return kernel, "it was asked for by name"
    if cannot["blockwise"]:
        return "reference", cannot["blockwise"]
    if not cannot["fused"] and cannot["banded"]:
        return "fused", "the backend has this one, and the same answer"
    if not cannot["one_query"]:
        return "one_query", "there is one query, and the keys are read once"
    if not cannot["banded"]:
        return "banded", "the pattern lets a query see few keys, and only those are computed"
    return (
        "blockwise",
        "no more than a block of scores is held at once; "
        f"not 'banded': {cannot['banded']}; not 'fused': {cannot['fused']}",
    )


def _no_bands(task):
    """Why no part of a task is for `banded`, or None."""
    reasons = [banded.why_not(part) for part in parts.of(task)]
    return None if None in reasons else reasons[0]


def _needs_reference(task):
    """Why only the definition can do this, or None."""
    for given, why in (
        (task.return_scores, "`return_attention_scores` needs all scores"),
        (task.score is not None, "the score is a function of pairs"),
        (task.normalization is not None, "the normalization is not softmax"),
        (task.gain is not None, "the weights are multiplied by something"),
        (0 in (*task.query.shape, *task.key.shape), "a length is 0"),
    ):
        if given:
            return why
    return None
