"""The slots of attention in their order: from heads to the arguments of a kernel.

The only place that makes an `AttentionSpec`. A call of a layer, a step with a cache, a step of a
recurrent decoder and `ops.attend` differ in what they pass.
"""

import typing

from keras_attention.spec import AttentionSpec


class Slots(typing.NamedTuple):
    """The slots of a function; those of a layer are its attributes of these names."""

    score: typing.Any
    normalization: typing.Any
    position: typing.Any = None
    preset_position: typing.Any = None


def problem(
    slots,
    query,
    key,
    value,
    positions,
    key_mask=None,
    training=None,
    choice_seed=None,
    encoded=False,
    prepared=False,
    projected=None,
    **given,
):
    """The arguments of a kernel: (spec, query, key, value).

    Args:
        slots: a layer, or `Slots`.
        query, key, value: heads (B, T, H, K), (B, S, G, K) and (B, S, G, V).
        positions: the `Positions` of queries and keys.
        key_mask: the padding of the keys, (B, S), which is among the masks; or None.
        training: whether to choose at random, with a normalization that does.
        choice_seed: of these choices.
        encoded: whether query and key are results of the position's `encode`.
        prepared: whether the key is a result of the score's `prepare_key`.
        projected: the heads of the position's table, as queries and as keys; or None.
        **given: all other fields of the `AttentionSpec` that are no slot's.
    """
    spec = AttentionSpec(positions=positions, **given)
    if slots.preset_position is not None:
        spec = slots.preset_position.into_spec(spec, query, key, key_mask)
    if not slots.normalization.of_kernels:
        spec = slots.normalization.into_spec(spec, training, choice_seed)
    position = slots.position
    if position is not None:
        if not encoded:
            at = positions.query, positions.key
            at = positions.of_lengths if position.needs_length else at
            query, key = position.encode(query, key, *at)
        # A custom position that projects no table need not accept `projected`.
        more = {} if projected is None else {"projected": projected}
        spec = position.into_spec(spec, query, key, key_mask, **more)
    spec, query, key = slots.score.into_spec(spec, query, key, prepared)
    return spec, query, key, value
