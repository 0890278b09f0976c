"""Alignments that add a term to the hidden units of an additive score."""

from __future__ import annotations

from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_attention import saving, scores
from keras_attention.alignments.base import Alignment
from keras_attention.backend import backend
from keras_attention.core.hints import Initializer, Tensor
from keras_attention.sequences import shapes

History = Literal["previous", "cumulative", "both"]


class OfAdditive(Alignment, saved=False):
    """The base of alignments that add a term to the hidden units of an additive score."""

    def __init__(self, kernel_initializer: Any = "glorot_uniform", **kwargs: Any):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def check(self, attention):
        if not isinstance(attention.score, (scores.Additive, scores.Concat)):
            raise ValueError(
                f"{type(self).__name__} adds a term inside the tanh of a score, which must be "
                f"`Additive` or `Concat`. Received: score={attention.score!r}"
            )

    def add_kernel(self, name, shape):
        return self.add_weight(shape, saving.clone_initializer(self.kernel_initializer), name=name)

    def term(self, states: list[Tensor]) -> Tensor:
        """What is added to the hidden units of keys, (B, S, H, U)."""
        raise TypeError(f"{type(self).__name__} must implement `term(self, states)`.")

    def next_states(self, states: list[Tensor], weights: Tensor) -> list[Tensor]:
        """The states after a step with these weights, (B, H, S)."""
        return [states[0] + weights]

    def attend(self, attend, query, key, states, more, training):
        result = attend(key + ops.cast(self.term(states), key.dtype))
        return result, self.next_states(states, ops.cast(result.weights[:, :, 0], states[0].dtype))


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
        return ops.einsum("bhs,hu->bshu", states[0], self.kernel)


class LocationSensitive(OfAdditive):
    """score_s = vᵀ tanh(W q + W' k_s + U f_s + b), f = F * w, w the weights of the step before.

    Chorowski et al. 2015, equations 8 and 9, where * is a convolution over positions. With
    history="cumulative", w is the sum of the weights of all earlier steps, as in Tacotron 2 (Shen
    et al. 2018, section 2.2); "both" are two channels of the convolution. The score must be
    `Additive` or `Concat`. F is (kernel_size, channels, filters), for all heads, U is (H, filters,
    units). Padding of the memory has weights of zero, as has what is beyond its ends.

    Args:
        filters, kernel_size: of the convolution.
        history: "previous", "cumulative" or "both".
        kernel_initializer: of F and U.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: an argument is not as described, or the score of the cell is another.

    >>> import keras
    >>> from keras_attention import AttentionCell, AttentionRNN, alignments
    >>> memory, x = keras.random.normal((2, 7, 16)), keras.random.normal((2, 5, 8))
    >>> near = alignments.LocationSensitive(filters=4, kernel_size=3, history="cumulative")
    >>> cell = AttentionCell(keras.layers.GRUCell(16), "additive", alignment=near)
    >>> AttentionRNN(cell, return_sequences=True)(x, memory).shape
    (2, 5, 16)
    """

    def __init__(
        self,
        filters: int = 32,
        kernel_size: int = 31,
        history: History = "previous",
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(kernel_initializer=kernel_initializer, **kwargs)
        self.filters = shapes.check_count("filters", filters)
        self.kernel_size = shapes.check_count("kernel_size", kernel_size)
        self.history = shapes.check_choice("history", history, get_args(History))
        self.num_states = 2 if history == "both" else 1

    def build(self, query_shape, key_shape, prepared_shape):
        heads, units = prepared_shape[2:]
        self.convolution = self.add_kernel(
            "convolution", (self.kernel_size, self.num_states, self.filters)
        )
        self.kernel = self.add_kernel("kernel", (heads, self.filters, units))

    def term(self, states: list[Tensor]) -> Tensor:
        batch, heads, length = ops.shape(states[0])
        history = ops.reshape(ops.stack(states, axis=-1), (batch * heads, length, self.num_states))
        # PyTorch's products promote nothing.
        convolution, kernel = (
            ops.cast(ops.convert_to_tensor(weight), history.dtype)
            for weight in (self.convolution, self.kernel)
        )
        if backend.known_size(states[0].shape[2]) == 0:
            # PyTorch has no convolution of nothing.
            features = ops.einsum("bsn,nf->bsf", history, convolution[0])
        else:
            features = ops.conv(history, convolution, padding="same", data_format="channels_last")
        features = ops.reshape(features, (batch, heads, length, self.filters))
        return ops.einsum("bhsf,hfu->bshu", features, kernel)

    def next_states(self, states: list[Tensor], weights: Tensor) -> list[Tensor]:
        before = {"previous": [], "cumulative": states[:1], "both": [states[-1]]}[self.history]
        sums = [total + weights for total in before]
        return sums if self.history == "cumulative" else [weights, *sums]
