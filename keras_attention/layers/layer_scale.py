"""`LayerScale`: a learned factor for each feature of a branch."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import inputs, masks, saving, shapes
from keras_attention.hints import Tensor


class LayerScale(saving.ConfigurableLayer):
    r"""Features times learned factors that start small (Touvron et al. 2021, CaiT, equation 4).

    `x · γ`. After the branches of a block, `x + γ · branch(norm(x))`, it lets deep models begin as
    nearly the identity. It is a norm of a `TransformerBlock` with `residual="sandwich"`.

    Args:
        value: what the factors start at: 0.1 for up to 18 blocks, 1e-5 for 24, 1e-6 for more.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (..., D).

    Returns:
        The same shape, carrying the mask of `x`.

    Raises:
        ValueError: `value` is not a finite number.

    Example:

    >>> import keras, keras_attention
    >>> scale = keras_attention.LayerScale(0.1)
    >>> block = keras_attention.TransformerBlock(
    ...     64,
    ...     num_heads=2,
    ...     residual="sandwich",
    ...     norm={"attention_output": scale, "feed_forward_output": scale},
    ... )
    >>> block(keras.random.normal((2, 5, 16))).shape
    (2, 5, 16)
    """

    def __init__(self, value: float = 0.1, **kwargs: Any):
        super().__init__(**kwargs)
        self.value = shapes.check_number("value", value)

    def build(self, x_shape):
        start = keras.initializers.Constant(self.value)
        self.scale = self.add_weight(name="scale", shape=(x_shape[-1],), initializer=start)

    def call(self, x: Tensor) -> Tensor:
        # The gradient of the factors sums over all rows, so padding is cleared.
        mask = masks.implicit(x)
        (x,) = inputs.floats((x,), self.compute_dtype)
        return masks.clear(x, mask) * self.scale

    compute_mask = masks.passed_on

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
