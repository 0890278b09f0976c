"""Small random inputs and weights, for tests of `MultiHeadAttention`."""

import keras
import numpy as np

from tests.arrays import random

ops = keras.ops

B, T, S, D = 2, 5, 3, 6


def booleans(*shape, seed=0):
    """A random mask in which every query has a key."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0] = True
    return mask


def close(ours, theirs, tolerance=1e-5):
    ours, theirs = (ops.convert_to_numpy(x) for x in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def randomize(layer, seed=0):
    """Gives every weight a random value: biases start as zeros, and would not be compared."""
    values = [
        w if "seed" in v.path else random(*w.shape, seed=seed + i) / 2
        for i, (v, w) in enumerate(zip(layer.weights, layer.get_weights(), strict=True))
    ]
    layer.set_weights(values)
