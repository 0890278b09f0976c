"""Arrays that tests are made of."""

import keras
import numpy as np

from tests.compiled import compiled


def random(*shape, seed=0):
    """Normal numbers in float32, the same in each process."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def numpy(tensor):
    """A tensor of any backend as a NumPy array, which has bfloat16 as float32."""
    if keras.backend.standardize_dtype(getattr(tensor, "dtype", "float32")) == "bfloat16":
        tensor = keras.ops.cast(tensor, "float32")
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def wide(tensor):
    """The same in float64, for comparisons."""
    return np.asarray(keras.ops.convert_to_numpy(tensor), "float64")


def close(found, expected, tolerance=1e-5):
    """Raises unless two arrays or tensors agree."""
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=tolerance, atol=tolerance)


def randomize(layer, seed=0):
    """Gives every weight a random value: biases start as zeros, and would not be compared."""
    values = [
        w if "seed" in v.path else random(*w.shape, seed=seed + i) / 2
        for i, (v, w) in enumerate(zip(layer.weights, layer.get_weights(), strict=True))
    ]
    layer.set_weights(values)


def built(layer, *shapes):
    """The layer, built of these shapes, with random weights."""
    layer.build(*shapes)
    randomize(layer)
    return layer


def run(function, *arrays):
    """What `function` returns, in float64."""
    return [wide(found) for found in compiled(function, *arrays)]
