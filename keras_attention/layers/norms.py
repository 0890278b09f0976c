"""The norms that a block or an attention layer makes: by name, or as a copy of a layer."""

import keras

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.layers.rms_norm import RMSNorm


def check(name, given, names):
    """`given`, one of `names`, or a Keras layer, maybe as its saved configuration."""
    if isinstance(given, dict) and "class_name" in given:
        given = saving.deserialize(given)
    if isinstance(given, keras.layers.Layer):
        return given
    if not isinstance(given, (str, bool, type(None))) or given not in names:
        raise ValueError(
            f"`{name}` must be one of {names}, or a Keras layer. Received: {name}={given!r}"
        )
    return given


class _LayerNorm(keras.layers.LayerNormalization):
    """Keras's, whose size is known where a backend traces the sizes of arrays."""

    def build(self, input_shape):
        self._size = input_shape[-1]
        super().build(input_shape)

    def call(self, inputs):
        found = backend.layer_normalization(inputs, self._size, self.gamma, self.beta, self.epsilon)
        return keras.ops.cast(found, self.compute_dtype)


def make(given, name, shape, dtype, epsilon=None, **layer_norm):
    """A built norm, "rms", "layer" or a copy of a layer; None for None.

    `epsilon` is that of the named ones, None for their default; `layer_norm` are further arguments
    of `LayerNormalization`.
    """
    if given is None:
        return None
    chosen = {} if epsilon is None else {"epsilon": epsilon}
    if given == "rms":
        norm = RMSNorm(name=name, dtype=dtype, **chosen)
    elif given == "layer":
        norm = _LayerNorm(name=name, dtype=dtype, **chosen, **layer_norm)
    else:
        norm = type(given).from_config({**given.get_config(), "name": name})
    # A layer that drops the mask would warn of it; it was read already.
    norm.supports_masking = True
    norm.build(shape)
    return norm
