"""The slots of `SlotAttention` before their first update: learned, or drawn in each call."""

from __future__ import annotations

from typing import Any, Literal, get_args

import keras

from keras_attention import saving, shapes
from keras_attention.hints import Tensor
from keras_attention.layers.learned_queries import LearnedQueries

ops = keras.ops

Initial = Literal["gaussian", "learned"]


class GaussianQueries(LearnedQueries):
    """Vectors `mean + exp(log_deviation) · noise`, with new noise for each call, row and vector.

    Args:
        *args: as in `LearnedQueries`.
        seed: of the noise.
        **kwargs: as in `LearnedQueries`; `initializer` is of `mean` and of `log_deviation`.
    """

    def __init__(self, *args: Any, seed: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seed = seed

    def build(self, x_shape):
        shape = (1, self.compute_output_shape(x_shape)[-1])
        self.mean, self.log_deviation = (
            self.add_weight(
                name=name, shape=shape, initializer=saving.clone_initializer(self.initializer)
            )
            for name in ("mean", "log_deviation")
        )
        self._seed_generator = keras.random.SeedGenerator(self.seed)

    def call(self, x: Tensor) -> Tensor:
        shape = (ops.shape(x)[0], self.num_queries, self.mean.shape[-1])
        noise = keras.random.normal(shape, dtype=self.compute_dtype, seed=self._seed_generator)
        mean, deviation = (ops.cast(w, noise.dtype) for w in (self.mean, self.log_deviation))
        return mean + ops.exp(deviation) * noise


def make(initial, num_slots, dim, initializer, seed, dtype):
    """The layer that gives each row of a batch its first slots."""
    shapes.check_choice("initial", initial, get_args(Initial))
    initializer = saving.clone_initializer(initializer)
    options = {"initializer": initializer, "name": "initial", "dtype": dtype}
    if initial == "learned":
        return LearnedQueries(num_slots, dim, **options)
    return GaussianQueries(num_slots, dim, seed=seed, **options)
