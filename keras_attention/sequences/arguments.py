"""From the arguments of `ops.attend`, checked, to those of a kernel."""

import functools

import keras

from keras_attention import normalizations, patterns, positions, scores
from keras_attention.core import slots
from keras_attention.core.hints import Tensor
from keras_attention.sequences import inputs, masks, shapes
from keras_attention.spec import AttentionSpec, Positions


def problem(given: inputs.Given) -> tuple[AttentionSpec, Tensor, Tensor, Tensor]:
    """The arguments of a kernel, (spec, query, key, value), from those of `attend`."""
    query, key, value = map(keras.ops.convert_to_tensor, (given.query, given.key, given.value))
    dtype = keras.backend.result_type(*(x.dtype for x in (query, key, value)), float)
    query, key, value = inputs.floats((query, key, value), dtype)
    shapes.check_heads(query, key, value)
    shapes.check_rate("dropout", given.dropout)
    mask = masks.boolean("mask", given.mask)
    if mask is not None:
        mask = inputs.four_axes("mask", mask)
        # Zeros for what is masked in all pairs, where one axis says it: to find such rows and
        # columns in masks of pairs would cost more.
        if mask.shape[1] == 1 and mask.shape[2] == 1:
            key, value = (masks.clear(x, mask[:, 0, 0]) for x in (key, value))
        if mask.shape[1] == 1 and mask.shape[3] == 1:
            query = masks.clear(query, mask[:, 0, :, 0])
    shapes.check_optional_positive("logit_soft_cap", given.logit_soft_cap)
    normalization = _slot("normalization", given.normalization, query, key)
    if given.return_lse and not normalization.of_kernels:
        raise ValueError(
            "`return_lse` is the logarithm of what a softmax divides by: it needs "
            f"normalization='softmax'. Received: normalization={normalization!r}"
        )
    score = _slot("score", given.score, query, key)
    position = _slot("position", given.position, query, key, value)
    if position is not None:
        position.check_score(score)
    return slots.problem(
        slots.Slots(score, normalization, position),
        *(query, key, value),
        _positions(given, query, key),
        logit_soft_cap=given.logit_soft_cap,
        biases=_bias(given.bias),
        masks=() if mask is None else (mask,),
        pattern=_slot("pattern", given.pattern),
        segment_ids=inputs.pair("segment_ids", given.segment_ids, query, key),
        sink=None if given.sink is None else _sink(given.sink, normalization, query),
        dropout=given.dropout,
        seed=given.seed,
        return_weights=given.return_attention_scores,
        return_lse=given.return_lse,
    )


def _bias(bias):
    """`bias` with four axes, in a tuple; empty if it is None."""
    if bias is None:
        return ()
    bias = keras.ops.convert_to_tensor(bias)
    inputs.check_bias("bias", bias, "mask")
    if len(bias.shape) > 4 or (len(bias.shape) == 3 and bias.shape[0] != 1):
        raise ValueError(
            "`bias` must be (T, S), or have four axes that broadcast to (B, H, T, S): pass "
            "`bias[None]` of one for each head, and `bias[:, None]` of one for each row. "
            f"Received: bias.shape={tuple(bias.shape)}"
        )
    for _ in range(4 - len(bias.shape)):
        bias = bias[None]
    return (bias,)


def _sink(sink, normalization, query):
    sink = keras.ops.convert_to_tensor(sink)
    if not normalization.takes_sink:
        raise ValueError(
            "A sink takes part in a softmax: `sink` needs normalization='softmax'. "
            f"Received: normalization={normalization!r}"
        )
    if tuple(sink.shape) != (query.shape[2],):
        raise ValueError(
            "`sink` must be one number for each head of `query`, (H,). Received: "
            f"sink.shape={tuple(sink.shape)}, query.shape={tuple(query.shape)}"
        )
    return sink


_GET = {
    "score": scores.get,
    "normalization": normalizations.get,
    "position": positions.get,
    "pattern": patterns.get,
}


def _slot(kind, given, *arrays):
    """The object of a slot, built for query and key, and a position for values too."""
    heads = tuple(tuple(array.shape) for array in arrays)
    if isinstance(given, str):
        policy = keras.config.dtype_policy().name
        return _named(kind, given, policy, *((1, 1, *shape[2:]) for shape in heads))
    slot = _GET[kind](given)
    return slot if slot is None or not heads else _built(kind, slot, *heads)


@functools.lru_cache(maxsize=256)
def _named(kind, name, policy, *heads):
    """The slot of a name. To make one takes longer than the operations of a small problem."""
    slot = _GET[kind](name)
    return _built(kind, slot, *heads) if heads else slot


def _built(name, slot, query, key, value=None):
    """A slot, built for heads of these shapes."""

    def build(slot):
        if value is not None:
            slot.build_values(value)
        if not slot.built:
            slot.build(query, key)

    if not slot.built:
        # A copy, so that an error leaves the caller's slot as it was.
        probe = type(slot).from_config(slot.get_config())
        build(probe)
        if probe.weights:
            raise ValueError(
                f"`{name}` has weights, which a function cannot own: use a layer, or build it "
                f"first. Received: {name}={slot!r}"
            )
    build(slot)
    return slot


def _positions(given, query, key):
    """The `Positions`, whose offset is an integer, or an int32 tensor without axes or (B,)."""
    offset = given.offset
    if given.query_positions is not None and not (isinstance(offset, int) and offset == 0):
        raise ValueError(
            "`offset` and `query_positions` both give the positions of queries: pass one of them. "
            f"Received: offset={offset!r} beside `query_positions`"
        )
    if isinstance(offset, int) and not isinstance(offset, bool):
        offset = shapes.check_count("offset", offset, -shapes.LARGEST)
    else:
        inputs.check_within("offset", offset, "int32")
        offset = keras.ops.convert_to_tensor(offset)
        dtype = keras.backend.standardize_dtype(offset.dtype)
        if "int" not in dtype or len(offset.shape) > 1:
            raise ValueError(
                "`offset` must be an integer, or integers (B,). "
                f"Received dtype {dtype} and shape {tuple(offset.shape)}"
            )
        if len(offset.shape) == 1 and offset.shape[0] != 1:
            sizes = {"query": query.shape[0], "offset": offset.shape[0]}
            shapes.check_same("Batch sizes of `query` and `offset`", **sizes)
        offset = keras.ops.cast(offset, "int32")
    return Positions.of(
        keras.ops.shape(query)[1],
        keras.ops.shape(key)[1],
        inputs.integers("query_positions", "query", given.query_positions, query),
        inputs.integers("key_positions", "key", given.key_positions, key),
        offset,
    )
