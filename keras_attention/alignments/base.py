"""Alignments: steps of attention that depend on the weights of earlier steps."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import keras
from keras import ops

from keras_attention import saving, scores
from keras_attention.backend import backend
from keras_attention.core.hints import Initializer, Tensor
from keras_attention.sequences import shapes
from keras_attention.spec import AttentionResult

History = Literal["previous", "cumulative", "both"]


class Alignment(saving.ConfigurableLayer, saved=False):
    """How the weights of a step of an `AttentionCell` depend on those of earlier steps.

    Subclasses implement `attend`, and `build` if they have weights. States are arrays (B, H, S) in
    float32, or in float64 where the cell is, of which there are `num_states`; `first_states` are
    zeros unless overridden.

    >>> import keras
    >>> from keras_attention import AttentionCell, AttentionRNN, alignments
    >>> @keras.saving.register_keras_serializable(package="my_package")
    ... class Fresh(alignments.Alignment):
    ...     '''Subtracts what earlier steps gave to a key.'''
    ...     def attend(self, attend, query, key, states, more, training):
    ...         result = attend(key, biases=(-states[0][:, :, None],))
    ...         return result, [states[0] + keras.ops.cast(result.weights[:, :, 0], "float32")]
    >>> memory, x = keras.random.normal((2, 7, 16)), keras.random.normal((2, 5, 8))
    >>> cell = AttentionCell(keras.layers.GRUCell(16), "dot", alignment=Fresh())
    >>> AttentionRNN(cell, return_sequences=True)(x, memory).shape
    (2, 5, 16)
    """

    _has_own_dtype = True
    # The number of states.
    num_states = 1
    # The number of arrays that `prepare` returns.
    num_prepared = 0
    # Whether training draws uniform random numbers, one for each head and key.
    random = False

    def check(self, attention: keras.layers.Layer) -> None:
        """Raises if it does not work with this attention layer."""

    def build(self, query_shape, key_shape, prepared_shape):
        """Creates the weights, for heads (B, 1, H, K) and (B, S, H, K).

        `prepared_shape` is that of keys that the score has prepared, (B, S, H, U).
        """

    def first_states(self, shape: Sequence[Any]) -> list[Tensor]:
        """The states before the first step, each of this shape, (B, H, S)."""
        return [ops.zeros(shape, self.compute_dtype) for _ in range(self.num_states)]

    def prepare(self, key: Tensor) -> list[Tensor]:
        """What all steps share, from the heads of the keys (B, S, H, K); batch axis first."""
        return []

    def attend(
        self,
        attend: Callable[..., AttentionResult],
        query: Tensor,
        key: Tensor,
        states: list[Tensor],
        more: Sequence[Any],
        training: bool,
    ) -> tuple[AttentionResult, list[Tensor]]:
        """The result of one step, with weights, and the states after it.

        Args:
            attend: a function from prepared keys to the result of the attention layer; fields of
                the `AttentionSpec` may be given too, such as `normalization`.
            query: heads of the query, (B, 1, H, K).
            key: keys as the score has prepared them, (B, S, H, U).
            states: of the step before.
            more: values (B, S, H, V); the mask of the memory (B, S); what `prepare` returned; and,
                with `random`, uniform numbers (B, H, S), or None outside training.
            training: whether it is a step of training.
        """
        raise TypeError(f"{type(self).__name__} must implement `attend`.")


class OfAdditive(Alignment, saved=False):
    """Adds `term(states)`, (B, S, H, U), to the hidden units of an additive score."""

    term: Callable[[list[Tensor]], Tensor]

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
        weights = self.convolution, self.kernel
        convolution, kernel = (ops.cast(weight, history.dtype) for weight in weights)
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
