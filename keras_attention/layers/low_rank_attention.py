"""The base of layers whose weights of all pairs are a product of two narrow matrices.

They take the road of `Attention.call`, and attend, instead of to all keys, to few that are made of
all tokens. So there is no weight for a pair, and no order: each of these keys has later tokens too.
"""

from __future__ import annotations

import keras

from keras_attention import masks
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.state_attention import OF_PAIRS
from keras_attention.spec import Positions

ops = keras.ops


class LowRankAttention(MultiHeadAttention):
    """Multi-head attention through few keys.

    Subclasses have `through_few(query, key, value, query_mask, key_mask, training)`, which returns
    an `AttentionResult`.
    """

    _fixed_arguments: tuple[str, ...] = ("pattern", "position", "sliding_window", "flash_attention")
    has_weights = False
    refused_arguments = (*OF_PAIRS, "use_causal_mask")
    refusal_reason = (
        "attends to vectors made of all tokens, so it has no weights of pairs, and is not causal"
    )
    tokens_reason = "its keys are made of the real tokens, one after another"

    @property
    def _order_matters(self):
        return True

    def attend(self, query, key, value, positions, training=None, **given):
        query_mask, key_mask = positions.query_mask, given["key_mask"]
        return self.through_few(query, key, value, query_mask, key_mask, training)

    def through_few(self, query, key, value, query_mask, key_mask, training):
        """The `AttentionResult` of heads (B, T, H, K), (B, S, G, K) and (B, S, G, V).

        Args:
            query_mask, key_mask: (B, T) and (B, S), True = a real token, or None.
            training: whether weights are dropped.
        """
        raise TypeError(f"{type(self).__name__} must implement `through_few`.")

    def over_few(self, query, key, value, query_mask, key_mask, training=None, **given):
        """Attention of the pipeline, over other queries or keys than those of the call."""
        at, restrict = Positions.of_heads(query, key), masks.of_pairs(query_mask, key_mask, None)
        return super().attend(query, key, value, at, training, masks=restrict, **given)

    def _refuse_caches(self):
        reason = "it attends to vectors made of all tokens, later ones too"
        self.heads.no_cache_reason = self.heads.no_decoding_reason = reason
