"""`RMSNorm`: division by the root mean square of the features."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import inputs, masks, saving, shapes
from keras_attention.backend import backend
from keras_attention.hints import Tensor
from keras_attention.kinds import Number, Positive, keep


class RMSNorm(saving.ConfigurableLayer):
    r"""Features divided by their root mean square (Zhang & Sennrich 2019, equation 4).

    `x / √(mean(x²) + ε) · (offset + w)`, in float32 (float64 for float64). Gemma's norm has
    `offset=1`, so that a weight decay pulls the scale to 1.

    Args:
        epsilon: added to the mean square.
        offset: added to the weight, which starts at `1 − offset`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (..., D).

    Returns:
        The same shape, carrying the mask of `x`.

    Raises:
        ValueError: `epsilon` is not a positive number, or `offset` not a number.

    Example:

    >>> import keras, keras_attention
    >>> norm = keras_attention.RMSNorm(offset=1.0)
    >>> [round(float(y), 4) for y in norm(keras.ops.convert_to_tensor([[3.0, -3.0]]))[0]]
    [1.0, -1.0]
    """

    def __init__(self, epsilon: Positive = 1e-6, offset: Number = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        keep(self, locals())

    def build(self, x_shape):
        start = keras.initializers.Constant(1.0 - self.offset)
        self.scale = self.add_weight(name="scale", shape=(x_shape[-1],), initializer=start)

    def call(self, x: Tensor) -> Tensor:
        # The weight's gradient sums over all rows, so padding is cleared.
        mask = masks.implicit(x)
        (x,) = inputs.floats((x,), self.compute_dtype)
        x = masks.clear(x, mask)
        scale = self.scale
        if self.offset:
            # Before it is rounded to the compute dtype: 1 + w has few digits in bfloat16.
            wide = shapes.accumulation_dtype(x)
            scale = keras.ops.cast(self.scale.value, wide) + self.offset
        return backend.rms_normalization(x, scale, self.epsilon)

    compute_mask = masks.passed_on

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)
