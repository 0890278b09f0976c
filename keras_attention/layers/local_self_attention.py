"""Self-attention over few keys: windowed, dilated, or strided."""

from __future__ import annotations

from typing import Any

from keras_attention import (
    normalizations,
    patterns,
    positions,
    regularizers,
    saving,
    scores,
    shapes,
)
from keras_attention.hints import Constraint, Initializer, Regularizer
from keras_attention.layers.attention import QkNorm
from keras_attention.layers.self_attention import SelfAttention


@saving.register
class LocalSelfAttention(SelfAttention):
    """Self-attention to `neighbors` keys on each side, `rate` positions apart.

    `SelfAttention` with the pattern `SlidingWindow(n · r, n · r) & Dilated(r)`: query i sees key j
    if |i − j| ≤ n · r and (i − j) mod r = 0.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        neighbors: n, the number of keys on each side.
        rate: r, the distance between them.
        causal: whether position t sees only positions up to t.
        score, normalization, pattern, position, dropout, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
            kernel_constraint, bias_constraint, seed, num_key_value_heads, qk_norm, logit_soft_cap,
            use_sink, scores_regularizer: as in `Attention`. A `pattern` is combined with that
            of the layer.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `SelfAttention`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `SelfAttention`; `neighbors` or `rate` is no positive integer.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.LocalSelfAttention(2, 4, neighbors=1, rate=3)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 6, s] > 0]
    [3, 6, 9]
    """

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        neighbors: int,
        rate: int = 1,
        causal: bool = False,
        score: scores.ScoreLike = "scaled_dot",
        normalization: normalizations.NormalizationLike = "softmax",
        pattern: patterns.PatternLike | None = None,
        position: positions.PositionLike | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        seed: int | None = None,
        num_key_value_heads: int | None = None,
        qk_norm: QkNorm = False,
        logit_soft_cap: float | None = None,
        use_sink: bool = False,
        scores_regularizer: regularizers.RegularizerLike | None = None,
        **kwargs: Any,
    ):
        super().__init__(**saving.forwarded(locals(), "neighbors", "rate"))
        self.neighbors = shapes.check_count("neighbors", neighbors)
        self.rate = shapes.check_count("rate", rate)
        reach = self.neighbors * self.rate
        near = patterns.SlidingWindow(reach, reach) & patterns.Dilated(self.rate)
        self.preset_pattern = patterns.every(self.preset_pattern, near)


@saving.register
class AtrousSelfAttention(SelfAttention):
    """Self-attention to every `rate`-th key, counted from the query.

    `SelfAttention` with the pattern `Dilated(r)`: query i sees key j if (i − j) mod r = 0.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        rate: r, the distance between keys.
        causal: whether position t sees only positions up to t.
        score, normalization, pattern, position, dropout, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
            kernel_constraint, bias_constraint, seed, num_key_value_heads, qk_norm, logit_soft_cap,
            use_sink, scores_regularizer: as in `Attention`. A `pattern` is combined with that
            of the layer.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `SelfAttention`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `SelfAttention`; `rate` is no positive integer.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.AtrousSelfAttention(2, 4, rate=4)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 6, s] > 0]
    [2, 6, 10]
    """

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        rate: int,
        causal: bool = False,
        score: scores.ScoreLike = "scaled_dot",
        normalization: normalizations.NormalizationLike = "softmax",
        pattern: patterns.PatternLike | None = None,
        position: positions.PositionLike | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        seed: int | None = None,
        num_key_value_heads: int | None = None,
        qk_norm: QkNorm = False,
        logit_soft_cap: float | None = None,
        use_sink: bool = False,
        scores_regularizer: regularizers.RegularizerLike | None = None,
        **kwargs: Any,
    ):
        super().__init__(**saving.forwarded(locals(), "rate"))
        self.rate = shapes.check_count("rate", rate)
        self.preset_pattern = patterns.every(self.preset_pattern, patterns.Dilated(self.rate))


@saving.register
class SparseSelfAttention(SelfAttention):
    """Self-attention to every `rate`-th key and to the near ones (Child et al. 2019, section 4.3).

    `SelfAttention` with the pattern `Strided(r)`: query i sees key j if (i − j) mod r = 0 or
    |i − j| < r. With r near √T, two layers connect any two positions, and each sees O(√T) keys.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        rate: r, the stride.
        causal: whether position t sees only positions up to t, as in the paper.
        score, normalization, pattern, position, dropout, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
            kernel_constraint, bias_constraint, seed, num_key_value_heads, qk_norm, logit_soft_cap,
            use_sink, scores_regularizer: as in `Attention`. A `pattern` is combined with that
            of the layer.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `SelfAttention`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `SelfAttention`; `rate` is no positive integer.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.SparseSelfAttention(2, 4, rate=3, causal=True)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 8, s] > 0]
    [2, 5, 6, 7, 8]
    """

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        rate: int,
        causal: bool = False,
        score: scores.ScoreLike = "scaled_dot",
        normalization: normalizations.NormalizationLike = "softmax",
        pattern: patterns.PatternLike | None = None,
        position: positions.PositionLike | None = None,
        dropout: float = 0.0,
        use_bias: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        seed: int | None = None,
        num_key_value_heads: int | None = None,
        qk_norm: QkNorm = False,
        logit_soft_cap: float | None = None,
        use_sink: bool = False,
        scores_regularizer: regularizers.RegularizerLike | None = None,
        **kwargs: Any,
    ):
        super().__init__(**saving.forwarded(locals(), "rate"))
        self.rate = shapes.check_count("rate", rate)
        self.preset_pattern = patterns.every(self.preset_pattern, patterns.Strided(self.rate))
