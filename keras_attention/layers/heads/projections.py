"""What the `Dense` layers and the dropout inside a layer make of each position.

Without their calls, which cost more than a small product does. TensorFlow would multiply a batch of
matrices, one sequence at a time. One product for query, key and value of a sequence is slower than
three: what it finds is copied apart.
"""

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core import rematerialization


def dense(layer, name, units, shape, use_bias, activation=None, dtype=None):
    """A built `Dense` of a layer, with copies of the layer's initializers, in its dtype or one."""
    made = keras.layers.Dense(
        units,
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=saving.clone_initializer(layer.kernel_initializer),
        bias_initializer=saving.clone_initializer(getattr(layer, "bias_initializer", "zeros")),
        name=name,
        dtype=dtype or layer.dtype_policy,
    )
    made.build(shape)
    return made


def product(x, kernel):
    """`x @ kernel`; Keras's `matmul` computes that of float64 in float32 on PyTorch."""
    if keras.backend.standardize_dtype(x.dtype) == "float64":
        return backend.matmul(x, ops.convert_to_tensor(kernel))
    return ops.matmul(x, kernel)


def plain(layer, *denses, activated=False):
    """Whether all of `denses` only multiply by a kernel and add a bias, in one dtype.

    False if one was quantized, replaced, or given a loss, or an activation unless `activated`.
    """
    for dense in denses:
        if (
            type(dense) not in (keras.layers.Dense, keras.layers.EinsumDense)
            or dense.quantization_mode is not None
            or not (activated or dense.activation in (None, keras.activations.linear))
            or dense.activity_regularizer is not None
            or dense.compute_dtype != layer.compute_dtype
        ):
            return False
    return True


def heads(layer, dense, x, *size):
    """`x` (B, T, D) by `dense`, a part of `layer`, as (B, T, *size)."""
    if plain(layer, dense):
        return affine(x, x.shape[-1], dense, (*backend.shape(x)[:2], *size))
    return dense(x)


def affine(x, features, dense, shape):
    """Rows of `features` of `x` times the kernel of `dense`, plus its bias, in another shape."""
    bias = None if dense.bias is None else ops.convert_to_tensor(dense.bias)
    return backend.affine(x, features, ops.convert_to_tensor(dense.kernel), bias, shape)


def apply(layer, dense, x):
    """`dense(x)`, (…, units) of (…, D), where `dense` is a part of `layer`."""
    keeps_dtype = keras.backend.standardize_dtype(x.dtype) == dense.compute_dtype
    if not (keeps_dtype and plain(layer, dense, activated=True)):
        return dense(x)
    *sizes, features = backend.shape(x)
    output = affine(x, features, dense, (*sizes, dense.units))
    return output if dense.activation is None else dense.activation(output)


def apply_float64(layer, dense, x):
    """`dense(x)`, which Keras computes of float64 in float32 on PyTorch."""
    return apply(layer, dense, x) if layer.compute_dtype == "float64" else dense(x)


def gated(layer, dense, gate, x):
    """`dense(x) · gate(x)`."""
    # The gate first, so that its activation runs while its product is in the CPU's cache.
    factor, hidden = (apply(layer, part, x) for part in (gate, dense))
    if plain(layer, dense):
        return backend.multiply_fresh(hidden, factor)
    return ops.multiply(hidden, factor)


class Dropout(keras.layers.Dropout):
    """`Dropout` that is fast under XLA on CPU."""

    def call(self, inputs, training=False):
        if self.rate and training:
            return backend.dropout(inputs, self.rate, self.seed_generator)
        return inputs

    def drop(self, x, training):
        """The result of a call; where that is `x`, without the cost of a call."""
        keeps_dtype = keras.backend.standardize_dtype(x.dtype) == self.compute_dtype
        return x if keeps_dtype and not (self.rate and training) else self(x, training=training)

    def rematerialized_call(self, layer_call, *args, **kwargs):
        return rematerialization.of_call(
            self, super().rematerialized_call, layer_call, *args, **kwargs
        )
