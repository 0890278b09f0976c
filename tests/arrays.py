"""Arrays that tests are made of."""

import keras
import numpy as np


def random(*shape, seed=0):
    """Normal numbers in float32, the same in each process."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def numpy(tensor):
    """A tensor of any backend as a NumPy array."""
    return np.asarray(keras.ops.convert_to_numpy(tensor))
