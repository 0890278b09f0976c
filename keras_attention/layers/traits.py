"""What an attention layer has, needs and refuses, as one value: `layer.traits`.

It follows from the slots and the heads, and a layer adds what is its own. Calls, caches, cells,
stacks and inspection read it. A layer of another package has the defaults, which promise nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_attention import patterns
from keras_attention.layers import kv_cache


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits of an attention layer.

    Args:
        has_weights: whether there is a weight for each pair, which a call may return.
        attentions: the number of attentions of each head, of which its weights are made.
        norms_heads: whether a norm follows the heads, so that a factor of their weights is lost.
        one_sequence: whether it takes one sequence only, whose tokens may be appended to a cache
            where none sees those after it.
        needs_positions: whether it depends on more of its positions than on the order of tokens.
        on_grid: whether positions are cells of a grid, which stay where they are.
        encodes_anew: that of its position, or None.
        window: the number of tokens up to and including itself that a query can see in a cache;
            None for all.
        layouts: those of the caches that it takes, in the order in which they are tried.
        refused, refusal: the arguments of a call that it does not take, and why.
        no_decoding_reason: why it cannot be computed token by token, or None.
        no_cache_reason: why its keys and values cannot be kept for several calls, or None.
        no_cell_reason: why an `AttentionCell` cannot take it although it could be cached, or None.
        tokens_reason: why it can count tokens alone, and no places, or None.
    """

    has_weights: bool = True
    attentions: int = 1
    norms_heads: bool = False
    one_sequence: bool = False
    needs_positions: bool = True
    on_grid: bool = False
    encodes_anew: tuple[str, int] | None = None
    window: int | None = None
    layouts: tuple[kv_cache.Layout, ...] = kv_cache.LAYOUTS
    refused: tuple[str, ...] = ()
    refusal: str = ""
    no_decoding_reason: str | None = None
    no_cache_reason: str | None = None
    no_cell_reason: str | None = None
    tokens_reason: str | None = None

    def replace(self, **changes: Any) -> Traits:
        """The same with changes."""
        return dataclasses.replace(self, **changes)


def of(layer: Any) -> Traits:
    """The traits of a layer, or the defaults for one of another package."""
    found = getattr(layer, "traits", None)
    return found if isinstance(found, Traits) else Traits()


def of_slots(layer: Any, one_sequence: bool = False) -> Traits:
    """The traits that follow from the slots and the heads of an `Attention`."""
    pattern, slots = layer.whole_pattern(), (layer.preset_position, layer.position)
    in_order = pattern is None or isinstance(pattern, patterns.Causal)
    left = layer.whole_pattern(causal=True).span().left
    return Traits(
        one_sequence=one_sequence,
        needs_positions=layer.score.needs_length or not in_order or slots != (None, None),
        on_grid=not all(part is None or part.counts for part in (layer.position, pattern)),
        encodes_anew=layer.position and layer.position.encodes_anew,
        window=None if left is None else left + 1,
        no_decoding_reason=_no_decoding_reason(layer, pattern, slots, one_sequence),
        no_cache_reason=layer.heads.no_cache_reason,
    )


def _no_decoding_reason(layer, pattern, slots, one_sequence):
    """The reason a layer cannot be computed token by token, or None."""
    if one_sequence:
        right = None if pattern is None else pattern.span().right
        if right is None or right > 0:
            return "a token would see tokens after it; pass causal=True"
    for position in slots:
        if position is not None and position.no_decoding_reason is not None:
            return position.no_decoding_reason
    if layer.score.needs_length:
        return f"the score {type(layer.score).__name__} depends on the number of keys"
    return layer.heads.no_decoding_reason
