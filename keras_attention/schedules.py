"""Schedules of the learning rate."""

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core.hints import Tensor
from keras_attention.sequences import shapes

__all__ = ["InverseSquareRoot"]


@saving.register
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    r"""Linear warmup, then inverse-square-root decay.

    Vaswani et al. 2017, section 5.3, equation 3, times `scale`:

        scale · dim^(−1/2) · min(step^(−1/2), step · warmup_steps^(−3/2))

    It is highest at step `warmup_steps`, with scale / √(dim · warmup_steps). The paper counts steps
    from 1 and Keras's optimizers from 0: the rate of step 0 is that of step 1, so that the first
    update is not lost.

    Args:
        dim: features of the model, d_model of the paper.
        warmup_steps: the step at which the rate is highest, at least 1.
        scale: multiplier of the rate.

    Call arguments:
        step: an integer, or an integer tensor of any shape.

    Returns:
        float32, of the shape of `step`.

    Raises:
        ValueError: an argument is not a positive number, or a count is not an integer.

    >>> import keras, keras_attention
    >>> schedule = keras_attention.schedules.InverseSquareRoot(dim=512, warmup_steps=4000)
    >>> [f"{float(schedule(step)):.2e}" for step in (0, 1, 4000, 16000)]
    ['1.75e-07', '1.75e-07', '6.99e-04', '3.49e-04']
    >>> optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    """

    def __init__(self, dim: int, warmup_steps: int, scale: float = 1.0):
        self.dim = shapes.check_count("dim", dim)
        self.warmup_steps = shapes.check_count("warmup_steps", warmup_steps)
        self.scale = shapes.check_positive("scale", scale)

    def __call__(self, step: int | Tensor) -> Tensor:
        step = ops.maximum(ops.cast(step, "float32"), 1.0)
        factor = self.scale * self.dim**-0.5
        return factor * ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)

    def get_config(self):
        return {name: getattr(self, name) for name in saving.constructor_arguments(type(self))}
