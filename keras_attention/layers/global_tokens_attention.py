"""The base of layers whose first tokens attend by other heads than those after them."""

import keras

from keras_attention.backend import backend
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.spec import Positions, mapped, part

ops = keras.ops


class GlobalTokensAttention(MultiHeadAttention):
    """Two attentions: the first `num_global` queries over all keys, and the others by a pattern.

    The heads of a subclass return keys and values (B, 2S, G, K): the first S are those of the
    pattern, and the others those of the first queries.
    """

    num_global: int

    _order_matters = True
    refused_arguments = ("positions", "use_causal_mask")
    refusal_reason = (
        "counts its global tokens from the first position, and they attend to later ones"
    )

    def attend(self, query, key, value, positions, training=None, **given):
        query_mask, seen = positions.query_mask, positions.key_mask
        length = backend.shape(key)[1] // 2
        (near_key, key), (near_value, value) = (
            (x[:, :length], x[:, length:]) for x in (key, value)
        )
        others = super().attend(
            *(query, near_key, near_value),
            Positions.of_heads(query, near_key).of_padded(query_mask, seen),
            training=training,
            **given,
        )
        rows = mapped(given, part("t", 0, self.num_global))
        query, query_mask = (
            x if x is None else x[:, : self.num_global] for x in (query, query_mask)
        )
        first = super().attend(
            *(query, key, value, Positions.of_heads(query, key).of_padded(query_mask, seen)),
            training=training,
            **{**given, **rows, "pattern": None},
        )
        return _joined(first, others, self.num_global)


def _joined(first, others, count):
    """One result of that of the first `count` queries, and that of all, without theirs."""

    def rows(name, axis):
        found = [getattr(first, name), getattr(others, name)]
        if found[0] is None and found[1] is None:
            return None
        if name in ("has_keys", "mask"):
            found = [_whole(x, result, name) for x, result in zip(found, results, strict=True)]
        rest = found[1][(*(slice(None),) * axis, slice(count, None))]
        return ops.concatenate([found[0], rest], axis=axis)

    results = first, others
    return others.replace(
        output=rows("output", 1),
        **{name: rows(name, 2) for name in ("weights", "has_keys", "mask", "log_probability")},
    )


def _whole(array, result, name):
    """An array of a result that may have fewer rows, or be None, where it is True."""
    batch, length, heads, _ = backend.shape(result.output)
    keys = backend.shape(result.weights)[3:] if name == "mask" else ()
    array = ops.ones((), "bool") if array is None else array
    return ops.broadcast_to(array, (batch, heads, length, *keys))
