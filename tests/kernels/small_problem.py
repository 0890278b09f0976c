"""One small attention under every kind of mask, and its arrays: what tests of kernels share."""

import keras
import numpy as np
import pytest

from keras_attention import patterns

B, T, S, H, K, V = 2, 3, 5, 2, 4, 6
POSITIONS = np.arange(T)[:, None], np.arange(S)[None]

# The rounding of results, relative and absolute. Scores and weights are float32 in all but float64.
ROUNDING = {
    "float64": {"rtol": 1e-12, "atol": 1e-12},
    "float32": {"rtol": 1e-5, "atol": 1e-6},
    "bfloat16": {"rtol": 2**-8, "atol": 1e-5},
    "float16": {"rtol": 2**-10, "atol": 1e-5},
}
LARGEST = {"float32": 1e30, "bfloat16": 1e30, "float16": 6e4}
NARROW = ("float32", "bfloat16", "float16")


def allowed_with_empty_rows():
    """No key for a query of one sequence, none for a head's query, none for a whole sequence."""
    mask = np.random.default_rng(7).random((B, H, T, S)) < 0.6
    mask[..., 0] = True
    mask[0, :, 1] = False
    mask[0, 1, 2] = False
    mask[1] = False
    return mask


def some(*shape, seed):
    """A random mask in which every query has a key."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 0] = True
    return mask


PADDING = (np.arange(S) < np.array([[S], [2]]))[:, None, None]
CAUSAL = POSITIONS[1] <= POSITIONS[0]
EXPLICIT = some(B, T, S, seed=2)
WINDOW = patterns.SlidingWindow(1, 1)
# Name: what `attend` is given, and the mask (B, H, T, S) that this means.
MASKS = {
    "none": ({}, True),
    "padding": ({"mask": PADDING}, PADDING),
    "(T, S)": ({"mask": some(T, S, seed=1)}, some(T, S, seed=1)),
    "(B, T, S)": ({"mask": EXPLICIT}, EXPLICIT[:, None]),
    "(B, H, T, S)": ({"mask": some(B, H, T, S, seed=3)}, some(B, H, T, S, seed=3)),
    "causal": ({"pattern": "causal"}, CAUSAL),
    "causal and explicit": ({"pattern": "causal", "mask": EXPLICIT}, CAUSAL & EXPLICIT[:, None]),
    "window and padding": (
        {"pattern": WINDOW, "mask": PADDING},
        (abs(POSITIONS[0] - POSITIONS[1]) <= 1) & PADDING,
    ),
    "rows with no key": ({"mask": allowed_with_empty_rows()}, allowed_with_empty_rows()),
}


def random(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape)


def arrays():
    """Query, key and value, large enough that softmax is far from uniform."""
    return 2 * random(B, T, H, K, seed=10), random(B, S, H, K, seed=11), random(B, S, H, V, seed=12)


def tensors(*arrays, dtype="float32"):
    return [keras.ops.cast(keras.ops.convert_to_tensor(array), dtype) for array in arrays]


def numpy(tensor, dtype="float64"):
    """NumPy has no bfloat16, so that goes by way of float32, which holds it exactly."""
    if keras.backend.standardize_dtype(tensor.dtype) == "bfloat16":
        tensor = keras.ops.cast(tensor, "float32")
    return np.asarray(keras.ops.convert_to_numpy(tensor)).astype(dtype)


def float64_or_skip(dtype):
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")


def arrays_float32():
    return [array.astype("float32") for array in arrays()]
