"""What an attention layer has, needs and refuses, as one value: `layer.traits`.

It follows from the slots and the heads, and a layer adds what is its own. Calls, caches, cells,
stacks and inspection read it. A layer of another package has the defaults, which promise nothing.
"""

from typing import Any, NamedTuple

from keras_attention import patterns
from keras_attention.layers import kv_cache

# The arguments that a call with a cache does not take: all of them where it appends tokens, and the
# first four where its keys and values are in the cache.
_KNOWN = (
    *("value", "key", "value_mask", "key_mask"),
    *("attention_mask", "attention_bias", "positions", "segment_ids"),
)
# The arguments of a call that need all pairs of queries and keys.
OF_PAIRS = (
    *("attention_mask", "attention_bias", "segment_ids", "positions", "return_attention_scores"),
)


class Traits(NamedTuple):
    """The traits of an attention layer."""

    # Whether there is a weight for each pair, which a call may return.
    has_weights: bool = True
    # How many attentions a head consists of; and whether a norm follows, which removes any factor.
    attentions: int = 1
    norms_heads: bool = False
    # Whether it takes one sequence only, whose tokens may be appended to a cache where none sees
    # those after it.
    one_sequence: bool = False
    # Whether it depends on more of its positions than on the order of tokens; whether they are
    # cells of a grid, which stay where they are; and `encodes_anew` of its `Position`.
    needs_positions: bool = True
    on_grid: bool = False
    encodes_anew: tuple[str, int] | None = None
    # Whether a call may give positions of the tokens that it appends to a cache: nothing but
    # `encode` of each alone depends on them.
    cached_positions: bool = False
    # The caches that it takes, in the order in which they are tried, and how many tokens up to and
    # including itself a query can see in one; None for all.
    layouts: tuple[kv_cache.Layout, ...] = kv_cache.LAYOUTS
    window: int | None = None
    # Whether attention over some keys and over others can be merged to that over all.
    merges: bool = False
    # The arguments of a call that it takes beside those of all layers.
    takes: tuple[str, ...] = ()
    # The arguments of a call that it does not take, and why.
    refused: tuple[str, ...] = ()
    refusal: str = ""
    # Reasons, or None: why it cannot be computed token by token; why its keys and values cannot be
    # kept; why an `AttentionCell` cannot take it although they can; why it cannot count places.
    no_decoding_reason: str | None = None
    no_cache_reason: str | None = None
    no_cell_reason: str | None = None
    tokens_reason: str | None = None


def of(layer: Any) -> Traits:
    """The traits of a layer, or the defaults for one of another package."""
    found = getattr(layer, "traits", None)
    return found if isinstance(found, Traits) else Traits()


def of_slots(layer: Any) -> Traits:
    """The traits of a layer: of its slots and heads, and the `own_traits` of its classes."""
    own: dict[str, Any] = {}
    for cls in reversed(type(layer).__mro__):
        own |= vars(cls).get("own_traits", {})
    pattern, slots = layer.whole_pattern(), (layer.preset_position, layer.position)
    in_order = pattern is None or isinstance(pattern, patterns.Causal)
    needs_length = layer.score is not None and layer.score.needs_length
    left = layer.whole_pattern(causal=True).span().left
    at, softmax = layer.position, layer.normalization is not None and layer.normalization.of_kernels
    found = {
        "needs_positions": needs_length or not in_order or slots != (None, None),
        "on_grid": not all(part is None or part.counts for part in (layer.position, pattern)),
        "encodes_anew": layer.position and layer.position.encodes_anew,
        "cached_positions": (in_order and layer.preset_position is None)
        and (at is None or (at.encodes_alone and at.overrides == {"encode"})),
        "window": None if left is None else left + 1,
        "merges": softmax
        and not getattr(layer, "use_sink", False)
        and (in_order and layer.preset_position is None)
        and (at is None or (at.encodes_alone or "encode" not in at.overrides))
        and not (at is not None and at.needs_length),
        "no_decoding_reason": _no_decoding_reason(layer, pattern, slots, own.get("one_sequence")),
        "no_cache_reason": layer.heads.no_cache_reason or (layer.reuse and "it has `reuse`"),
    }
    return Traits(**found | own)


def _no_decoding_reason(layer, pattern, slots, one_sequence):
    """The reason a layer cannot be computed token by token, or None."""
    if one_sequence:
        right = None if pattern is None else pattern.span().right
        if right is None or right > 0:
            return "a token would see tokens after it; pass causal=True"
    for position in slots:
        if position is not None and position.no_decoding_reason is not None:
            return position.no_decoding_reason
    if layer.score is not None and layer.score.needs_length:
        return f"the score {type(layer.score).__name__} depends on the number of keys"
    return layer.heads.no_decoding_reason


def check_cache(layer, reason):
    """Raises if a layer does not support a cache, for a reason that is not None."""
    if reason is not None:
        raise ValueError(f"This {type(layer).__name__} cannot have a cache: {reason}")


def layout(layer, tensors, explicit, cache, handed, return_attention_scores=False, **given):
    """The `Layout` of a call's cache, or the `handed` one; raises for arguments that it refuses."""
    query, given["value"], given["key"] = tensors
    _, given["value_mask"], given["key_mask"] = explicit
    if isinstance(query, (list, tuple)):
        query, given["value"] = query[0], query[1:]
    traits, layout = layer.traits, handed
    if not handed.appends:
        layout = kv_cache.layout(cache, traits.layouts, traits.window)
        count, *sizes = (layer.heads.cached if layout.appends else layer.heads).stored
        if layout.is_state:
            sizes = [layer._cached_shapes]
        kv_cache.check(cache, layout, query.shape[0], count, *sizes)
    reason = traits.no_decoding_reason if layout.appends else traits.no_cache_reason
    if reason is not None:
        check_cache(layer, reason)
    takes = ("positions",) if traits.cached_positions and layout.encodes else ()
    names = _KNOWN if layout.appends else _KNOWN[:4]
    refused = [name for name in names if name not in takes and given.get(name) is not None]
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
