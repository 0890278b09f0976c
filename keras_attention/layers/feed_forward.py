"""`FeedForward`: the position-wise network of a transformer block."""

from __future__ import annotations

import functools
from typing import Any

from keras_attention import activations, masks, parts, saving, shapes
from keras_attention.hints import Activation, Initializer, Tensor
from keras_attention.kinds import Count, RandomSeed, Rate, keep
from keras_attention.layers import projections
from keras_attention.layers.dropout import Dropout


class FeedForward(saving.ConfigurableLayer):
    r"""Two projections with an activation between, applied to each position.

    `act(x W_1 + b_1) W_2 + b_2` (Vaswani et al. 2017, equation 2), or gated,
    `(act(x W_g + b_g) ⊙ (x W_1 + b_1)) W_2 + b_2` (Shazeer 2020: GEGLU with "gelu", SwiGLU with
    "silu").

    Args:
        intermediate_dim: features between the projections.
        activation: a Keras activation, or "gelu_tanh", "quick_gelu", "relu_squared".
        gated: whether the activation is applied to a separate gate.
        dropout: rate of the dropout before the second projection.
        output_dim: features of the output; defaults to those of the input.
        use_bias: whether the projections have biases.
        kernel_initializer, bias_initializer: of the projections.
        seed: seed of the dropout.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (..., D).
        training: whether to apply dropout.

    Returns:
        (..., output_dim), carrying the mask of `x`.

    Raises:
        ValueError: a size or the rate is not as described.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 16))
    >>> keras_attention.FeedForward(64, "silu", gated=True)(x).shape
    (2, 5, 16)
    """

    def __init__(
        self,
        intermediate_dim: Count,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: Rate = 0.0,
        output_dim: Count | None = None,
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        seed: RandomSeed = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        keep(self, locals())
        self.activation = activations.get(activation)

    def build(self, x_shape):
        shapes.check_memory("intermediate", (x_shape[-1], self.intermediate_dim))
        shapes.check_memory("output", (self.intermediate_dim, self.output_dim))
        inside = (*x_shape[:-1], self.intermediate_dim)
        made = functools.partial(projections.dense, self, use_bias=self.use_bias)
        activation: Any = self.activation
        if self.gated:
            self._gate_dense = made("gate", inside[-1], x_shape, activation=activation)
            activation = None
        self._intermediate_dense = made("intermediate", inside[-1], x_shape, activation=activation)
        self._output_dense = made("output", self.output_dim or x_shape[-1], inside)
        self._dropout_layer = Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy)

    gate_dense = parts.part("_gate_dense", "The projection of the gate, if `gated`.")
    intermediate_dense = parts.part("_intermediate_dense", "The projection to features between.")
    output_dense = parts.part("_output_dense", "The projection to the output.")

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        x = masks.clear(x, masks.implicit(x))
        if self.gated:
            hidden = projections.gated(self, self._intermediate_dense, self._gate_dense, x)
        else:
            hidden = projections.apply(self, self._intermediate_dense, x)
        hidden = self._dropout_layer.drop(hidden, training)
        return projections.apply(self, self._output_dense, hidden)

    compute_mask = masks.passed_on

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.output_dim or x_shape[-1])
