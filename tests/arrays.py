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
    """Raises unless two NumPy arrays agree."""
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def run(function, *arrays):
    """What `function` returns, in float64."""
    return [wide(found) for found in compiled(function, *arrays)]
