"""Which caches an attention layer takes, and which calls with one."""

from keras_attention import masks
from keras_attention.layers import kv_cache

# The arguments that a call with a cache does not take: all of them where it appends tokens, and the
# first four where its keys and values are in the cache.
_KNOWN = (
    *("value", "key", "value_mask", "key_mask"),
    *("attention_mask", "attention_bias", "positions", "segment_ids"),
)


def window(layer):
    """The number of tokens up to and including itself that a query can see; None for all."""
    left = layer.whole_pattern(causal=True).span().left
    return None if left is None else left + 1


def reason(layer):
    """The reason a layer cannot be computed token by token, or None."""
    if layer.one_sequence:
        pattern = layer.whole_pattern()
        right = None if pattern is None else pattern.span().right
        if right is None or right > 0:
            return "a token would see tokens after it; pass causal=True"
    for position in (layer.preset_position, layer.position):
        if position is not None and position.no_decoding_reason is not None:
            return position.no_decoding_reason
    if layer.score.needs_length:
        return f"the score {type(layer.score).__name__} depends on the number of keys"
    return layer.heads.no_decoding_reason


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
    size = layer.cache_window
    layout = kv_cache.layout(cache, layer.layouts, size)
    count, *sizes = (layer.heads.cached if layout.appends else layer.heads).stored
    if layout.is_state:
        sizes = [layer._cached_shapes]
    kv_cache.check(cache, layout, query.shape[0], count, *sizes)
    reason = layer.no_decoding_reason if layout.appends else layer.heads.no_cache_reason
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
            f"{kv_cache.length(cache)} tokens for a window of {size}"
        )
    return layout


def converted(layer, x):
    """An argument as a call of the layer would get it, with the mask that it carries."""
    if x is None:
        return None
    converted = layer.dtype_policy.convert_input(x, layer.autocast, layer.input_dtype)
    return converted if converted is x else masks.carry(converted, masks.implicit(x))
