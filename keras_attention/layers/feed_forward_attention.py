"""`FeedForwardAttention`: pooling by a score of each position alone."""

from __future__ import annotations

from typing import Any

from keras_attention import normalizations, saving, scores
from keras_attention.hints import Activation, Initializer
from keras_attention.layers.attention_pooling import AttentionPooling


@saving.register
class FeedForwardAttention(AttentionPooling):
    r"""Feed-forward attention of Raffel & Ellis 2015: the weighted mean of a sequence.

    `e_s = a(x_s)`, `weight = softmax(e)`, `output = Σ_s weight[s] · x_s` (equations 5 to 7), where
    `a(x) = activation(w · x + b)`, or with `units` `a(x) = v · activation(W x + b)`.
    `AttentionPooling` without a query, with a score of the keys alone. Padding is ignored.

    Args:
        units: None, or the size of a hidden layer.
        activation: of the score, or of its hidden layer.
        normalization, dropout, seed: as in `AttentionPooling`.
        kernel_initializer: of w, or of W and v.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `AttentionPooling`.

    Returns:
        (B, D). It carries no mask. A row of padding gives zeros.

    Raises:
        ValueError, TypeError: as `AttentionPooling`; `units` is no positive integer.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.layers.Embedding(10, 32, mask_zero=True)(keras.ops.ones((2, 5), "int32"))
    >>> keras_attention.FeedForwardAttention()(x).shape
    (2, 32)
    """

    _fixed_arguments = (
        "num_queries", "num_heads", "key_dim", "value_dim", "score", "query_initializer",
    )  # fmt: skip

    learns_queries = False

    def __init__(
        self,
        units: int | None = None,
        activation: Activation = "tanh",
        normalization: normalizations.NormalizationLike = "softmax",
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        score = scores.KeyOnly(units, activation, kernel_initializer=kernel_initializer)
        super().__init__(
            score=score, normalization=normalization, dropout=dropout, seed=seed, **kwargs
        )
        self.units = score.units
        self.activation = score.activation
        self.kernel_initializer = score.kernel_initializer
