"""`SelfAttention`: a sequence attends to itself."""

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
from keras_attention.layers.attention import Attention, QkNorm


@saving.register
class SelfAttention(Attention):
    """Attention of a sequence over itself: `Attention` with one input.

    `SelfAttention(8, 16)(x)` is `Attention(8, 16)([x, x, x])`, and with `causal=True` each position
    sees only itself and those before it.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        causal: whether position t sees only positions up to t.
        score, normalization, pattern, position, dropout, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
            kernel_constraint, bias_constraint, seed, num_key_value_heads, qk_norm, logit_soft_cap,
            use_sink, scores_regularizer: as in `Attention`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `Attention`, except `value` and `key`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `Attention`; and if it is built for a second sequence of another
            shape.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 128))
    >>> keras_attention.SelfAttention(8, 16, causal=True)(x).shape
    (2, 5, 128)
    """

    one_sequence = True

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        causal: bool = False,
        *,
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
        super().__init__(**saving.forwarded(locals(), "causal"))
        self.causal = shapes.check_flag("causal", causal)
        self.preset_pattern = patterns.Causal() if self.causal else None
