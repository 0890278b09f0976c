"""The projections of a layer of heads, in NumPy."""

import numpy as np

from tests.arrays import numpy


def heads(layer, x):
    """Query, key and value (B, T, H, ·) in float64."""
    found = []
    for dense in (layer.query_dense, layer.key_dense, layer.value_dense):
        kernel, bias = (numpy(w).astype("float64") for w in (dense.kernel, dense.bias))
        found.append(np.einsum("btd,dhk->bthk", x.astype("float64"), kernel) + bias)
    return found


def output(layer, combined):
    """The layer's output of heads (B, T, H, V)."""
    dense = layer.output_dense
    return np.einsum("bthv,hvd->btd", combined, numpy(dense.kernel)) + numpy(dense.bias)
