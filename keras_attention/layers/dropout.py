"""`Dropout` inside the layers."""

import keras

from keras_attention import rematerialization
from keras_attention.backend import backend


class Dropout(keras.layers.Dropout):
    """`Dropout` that is fast under XLA on CPU."""

    def call(self, inputs, training=False):
        if self.rate and training:
            return backend.dropout(inputs, self.rate, self.seed_generator)
        return inputs

    def drop(self, x, training):
        """What a call gives; without a call, which costs more than it does, if that is `x`."""
        keeps_dtype = keras.backend.standardize_dtype(x.dtype) == self.compute_dtype
        return x if keeps_dtype and not (self.rate and training) else self(x, training=training)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return rematerialization.of_call(
            self, super().rematerialized_call, layer_call, *args, **kwargs
        )
