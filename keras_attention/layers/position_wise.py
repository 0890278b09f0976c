"""What `Dense` layers inside a layer make of each position, by one product.

Without their calls, which cost more than a small product does. TensorFlow would multiply a batch of
matrices, one sequence at a time.
"""

import keras

from keras_attention.backend import backend
from keras_attention.layers import projections


def apply(layer, dense, x):
    """What `dense`, a part of `layer`, makes of `x` (…, D): (…, units)."""
    keeps_dtype = keras.backend.standardize_dtype(x.dtype) == dense.compute_dtype
    if not (keeps_dtype and projections.plain(layer, dense, activated=True)):
        return dense(x)
    *sizes, features = backend.shape(x)
    output = projections.affine(x, features, dense, (*sizes, dense.units))
    return output if dense.activation is None else dense.activation(output)


def apply_float64(layer, dense, x):
    """`dense(x)`, which Keras computes of float64 in float32 on PyTorch."""
    return apply(layer, dense, x) if layer.compute_dtype == "float64" else dense(x)


def gated(layer, dense, gate, x):
    """`dense(x) · gate(x)`."""
    # The gate first, so that its activation runs while its product is in the CPU's cache.
    factor, hidden = (apply(layer, part, x) for part in (gate, dense))
    if projections.plain(layer, dense):
        return backend.multiply_fresh(hidden, factor)
    return keras.ops.multiply(hidden, factor)
