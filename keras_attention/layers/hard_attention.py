"""`HardAttention`: each query attends to one key."""

from __future__ import annotations

from typing import Any

from keras_attention import normalizations, patterns, positions, regularizers, saving, scores
from keras_attention.hints import Constraint, Initializer, Regularizer
from keras_attention.layers.attention import Attention, QkNorm


@saving.register
class HardAttention(Attention):
    r"""Hard attention of Xu et al. 2015, section 4.1: all weight on one key.

    In training key s is sampled with probability `softmax(score)[s]`; at inference the key with
    the largest score is selected. `Attention` with the normalization `Hard(gradient, temperature)`.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        gradient: "straight_through" (Gumbel-softmax, Jang et al. 2017): the layer trains with any
            loss. "reinforce" (Williams 1992, as in Xu et al.): the layer also returns the
            log-probability of its choices, for a `ReinforceLoss`.
        temperature: of the straight-through gradient.
        score, pattern, position, dropout, use_bias, kernel_initializer, bias_initializer,
            kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
            bias_constraint, seed, num_key_value_heads, qk_norm, logit_soft_cap, scores_regularizer:
            as in `Attention`. `seed` makes the choices reproducible.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `Attention`.

    Returns:
        As `Attention`, scores being ones and zeros. With `gradient="reinforce"` the
        log-probability, (B, H, T), comes last: `(output, log_probability)` or
        `(output, scores, log_probability)`. It is 0 for a query with no key.

    Raises:
        ValueError, TypeError: as `Attention` and `normalizations.Hard`.

    Example:

    >>> import keras, keras_attention
    >>> queries, memory = keras.random.normal((2, 3, 8)), keras.random.normal((2, 5, 8))
    >>> layer = keras_attention.HardAttention(seed=1)
    >>> output, scores = layer(queries, memory, return_attention_scores=True, training=True)
    >>> bool(keras.ops.all(keras.ops.sum(scores == 1, axis=-1) == 1))
    True
    """

    _fixed_arguments = ("normalization", "use_sink")

    returns_log_probability = True
    normalization: normalizations.Hard

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        gradient: normalizations.Gradient = "straight_through",
        temperature: float = 1.0,
        *,
        score: scores.ScoreLike = "scaled_dot",
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
        scores_regularizer: regularizers.RegularizerLike | None = None,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(
            normalization=normalizations.Hard(gradient, temperature),
            **saving.forwarded(locals(), "gradient", "temperature"),
        )
        self.gradient = self.normalization.gradient
        self.temperature = self.normalization.temperature
