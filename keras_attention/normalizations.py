"""Normalizations: how scores become weights.

Softmax is what every kernel does by itself. Another one is a subclass with one method, which is
given the float32 scores (masked ones hugely negative) and the boolean mask (or None), both
broadcasting to (B, H, T, S); the kernel sets the weights of masked keys to exactly zero afterwards.

>>> import keras
>>> from keras_attention import normalizations
>>> @keras.saving.register_keras_serializable(package="my_package")
... class Squared(normalizations.Normalization):
...     def normalize(self, scores, mask):
...         weights = keras.ops.square(keras.ops.relu(scores))
...         return weights / (1e-6 + keras.ops.sum(weights, axis=-1, keepdims=True))
>>> import keras_attention
>>> x = keras.random.normal((2, 5, 8))
>>> keras_attention.Attention(normalization=Squared())([x, x]).shape
(2, 5, 8)
"""

import keras

from keras_attention import saving

ops = keras.ops


class Normalization(saving.Configurable):
    """Turns scores into weights over the last axis. Subclasses implement `normalize`."""

    def normalize(self, scores, mask):
        """Weights of the same shape as `scores`."""
        raise TypeError(f"{type(self).__name__} must implement `normalize(self, scores, mask)`.")

    def as_kernel_argument(self):
        """What `kernels.attend` takes: a function, or None for the softmax of its own."""
        return self.normalize


@saving.register
class Softmax(Normalization):
    """weight_s = exp(score_s) / Σ exp(score): positive, with sum one."""

    def as_kernel_argument(self):
        return None

    def normalize(self, scores, mask):
        return ops.softmax(scores, axis=-1)


@saving.register
class Sigmoid(Normalization):
    """weight_s = 1 / (1 + exp(−score_s)): each key on its own, with no competition."""

    def normalize(self, scores, mask):
        return ops.sigmoid(scores)


BUILTIN = {"softmax": Softmax, "sigmoid": Sigmoid}


def get(normalization):
    """The normalization that the argument names: an object, its saved config, or a string."""
    return saving.slot("normalization", Normalization, BUILTIN, normalization)
