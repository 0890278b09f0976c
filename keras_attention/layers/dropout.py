"""`Dropout` inside the layers."""

import keras

from keras_attention.kernels import primitives


class Dropout(keras.layers.Dropout):
    """Keras's, which under XLA on processor cores takes longer than the block around it."""

    def call(self, inputs, training=False):
        if training and self.rate:
            return primitives.dropout(inputs, self.rate, self.seed_generator)
        return inputs
