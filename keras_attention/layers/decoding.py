"""Which caches an attention layer takes, and which calls with one."""

from keras_attention import masks
from keras_attention.layers import kv_cache

# The arguments that a call with a cache does not take: all of them where it appends tokens, and the
# first four where its keys and values are in the cache.
_KNOWN = (
    *("value", "key", "value_mask", "key_mask"),
    *("attention_mask", "attention_bias", "positions", "segment_ids"),
)


def check(layer, reason):
    """Raises if a layer does not support a cache, for a reason that is not None."""
    if reason is not None:
        raise ValueError(f"This {type(layer).__name__} cannot have a cache: {reason}")


def layout(layer, tensors, explicit, cache, return_attention_scores=False, **given):
    """The `Layout` of a call's cache; raises unless its arguments are those that it supports."""
    query, given["value"], given["key"] = tensors
    _, given["value_mask"], given["key_mask"] = explicit
    if isinstance(query, (list, tuple)):
        query, given["value"] = query[0], query[1:]
    traits = layer.traits
    layout = kv_cache.layout(cache, traits.layouts, traits.window)
    count, *sizes = (layer.heads.cached if layout.appends else layer.heads).stored
    if layout.is_state:
        sizes = [layer._cached_shapes]
    kv_cache.check(cache, layout, query.shape[0], count, *sizes)
    reason = traits.no_decoding_reason if layout.appends else traits.no_cache_reason
    if reason is not None:
        check(layer, reason)
    refused = []
    for name in _KNOWN if layout.appends else _KNOWN[:4]:
        if given.get(name) is not None:
            refused.append(name)
    if refused:
        raise ValueError(
            f"A call with a cache takes the query, and its mask as `query_mask`: a cache knows "
            f"keys, values, their masks and positions. Received also: {', '.join(refused)}"
        )
    if return_attention_scores and layout.forgets:
        raise ValueError(
            "Scores are unsupported with a sliding-window cache, which is shorter than the "
            "sequence. Received: return_attention_scores=True, with a cache of "
            f"{kv_cache.length(cache)} tokens for a window of {traits.window}"
        )
    return layout


def converted(layer, x):
    """An argument as a call of the layer would get it, with the mask that it carries."""
    if x is None:
        return None
    converted = layer.dtype_policy.convert_input(x, layer.autocast, layer.input_dtype)
    return converted if converted is x else masks.carry(converted, masks.implicit(x))
