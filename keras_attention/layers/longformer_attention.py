"""`LongformerAttention`: a window, and global tokens with projections of their own."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import patterns, saving, shapes
from keras_attention.layers.global_tokens_attention import GlobalTokensAttention
from keras_attention.layers.longformer_heads import LongformerHeads


@saving.register
class LongformerAttention(GlobalTokensAttention):
    r"""Attention of Longformer (Beltagy et al. 2020, section 3.1), in linear time.

    Each token attends to those at most `window` positions away, and to the first `num_global`
    tokens. These attend to all, and have projections of their own, W', for their queries and for
    the keys and values that they attend to:

        head_i = softmax(q_i K^T / √key_dim) V      over j with |i − j| ≤ window or j < num_global
        head_i = softmax(q'_i K'^T / √key_dim) V'   over all j, for i < num_global

    A global token is one that sums the text up, such as that of a class, or one of a question. Pad
    on the right, or pass positions="tokens": they are the first of a row. For global tokens without
    projections of their own see `patterns.Global`.

    Args:
        num_heads, key_dim: as in `MultiHeadAttention`.
        window: how many positions to either side a token sees; half of `attention_window` in
            files of `transformers`.
        num_global: how many of the first tokens are global.
        value_dim: features of each value head; defaults to `key_dim`.
        **kwargs: `output_shape` and `use_gate` of `MultiHeadAttention`, and
            all other arguments of `Attention` but `pattern`.

    Call arguments are those of `Attention`, without a cache, `use_causal_mask` and integers as
    `positions`.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask; with
        `return_attention_scores=True` also the weights before dropout, (B, H, T, S).

    Raises:
        ValueError, TypeError: as `MultiHeadAttention`; a call is causal, has a cache, or has
            integers as `positions`.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 1000, 32))
    >>> layer = keras_attention.LongformerAttention(4, 8, window=16, num_global=1)
    >>> layer(x).shape
    (2, 1000, 32)
    >>> output, scores = layer(x, return_attention_scores=True)
    >>> [int(keras.ops.count_nonzero(scores[0, 0, query])) for query in (0, 1, 500)]
    [1000, 18, 34]
    """

    _fixed_arguments = ("pattern", "sliding_window", "attention_axes", "flash_attention")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        window: int,
        num_global: int = 1,
        value_dim: int | None = None,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.window = shapes.check_count("window", window)
        self.num_global = shapes.check_count("num_global", num_global)
        seen = patterns.SlidingWindow(window, window) | patterns.Prefix(num_global)
        self.preset_pattern = seen
        self.heads = LongformerHeads(self)
        reason = "its global tokens attend to later ones"
        self.heads.no_cache_reason = self.heads.no_decoding_reason = reason

    @property
    def global_query_dense(self) -> keras.Layer:
        """The layer that projects the queries of global tokens."""
        return self._global_query_dense

    @property
    def global_key_dense(self) -> keras.Layer:
        """The layer that projects the keys that global tokens attend to."""
        return self._global_key_dense

    @property
    def global_value_dense(self) -> keras.Layer:
        """The layer that projects the values that global tokens attend to."""
        return self._global_value_dense
