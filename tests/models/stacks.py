"""Parts of stacks for tests."""

import keras
import numpy as np


def randomize(model, seed=0):
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape) / 2)
    return model


class Nothing(keras.layers.Layer):
    """A feed-forward network whose residual adds nothing, so that a block is its attention."""

    def call(self, x):
        return 0 * x
