"""The base of alignments: steps of attention that depend on the weights of earlier steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_attention import saving, scores
from keras_attention.core.hints import Tensor
from keras_attention.spec import AttentionResult


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

    def __init__(self, **kwargs: Any):
        kwargs["dtype"] = kwargs.get("dtype") or scores.full_precision()
        super().__init__(**kwargs)

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
