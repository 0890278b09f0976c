"""Coverage: the score sees how much earlier steps attended to a key."""

from __future__ import annotations

import keras

from keras_attention import saving
from keras_attention.alignments.base import OfAdditive
from keras_attention.hints import Tensor


@saving.register
class Coverage(OfAdditive):
    """score_s = vᵀ tanh(W q + W' k_s + w c_s + b), c the sum of the weights of all earlier steps.

    See et al. 2017, equations 10 and 11. w is (H, units). The score must be `Additive` or `Concat`.
    The coverage loss of the paper is `scores_regularizer="coverage"` of the attention layer.

    Args:
        kernel_initializer: of w.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: the score of the cell is another.

    >>> import keras
    >>> from keras_attention import Attention, AttentionCell, AttentionRNN
    >>> memory, x = keras.random.normal((2, 7, 16)), keras.random.normal((2, 5, 8))
    >>> attention = Attention(score="additive", scores_regularizer="coverage")
    >>> cell = AttentionCell(keras.layers.GRUCell(16), attention, alignment="coverage")
    >>> rnn = AttentionRNN(cell, return_sequences=True)
    >>> rnn(x, memory).shape, len(rnn.losses)
    ((2, 5, 16), 1)
    """

    def build(self, query_shape, key_shape, prepared_shape):
        self.kernel = self.add_kernel("kernel", tuple(prepared_shape[2:]))

    def term(self, states: list[Tensor]) -> Tensor:
        return keras.ops.einsum("bhs,hu->bshu", states[0], self.kernel)
