"""Rotary: against the paper's equations in loops, relative in every form, exact far out."""

import keras
import numpy as np
import pytest

from keras_attention import Attention
from keras_attention.positions import Rotary
from tests.arrays import numpy, random
from tests.compiled import compiled, program
from tests.definition import rotated

B, T, S, H, G, K = 2, 5, 7, 4, 2, 8
LENGTH = 64

# Each scaling with arguments under which all of its parts show among 8 and 16 features.
SCALINGS = {
    "none": {},
    "linear": {"scaling": "linear", "factor": 4.0},
    "dynamic": {"scaling": "dynamic", "factor": 2.0, "original_max_length": 4},
    "dynamic, not beyond": {"scaling": "dynamic", "factor": 2.0, "original_max_length": 40},
    "yarn": {
        "scaling": "yarn",
        "factor": 8.0,
        "original_max_length": LENGTH,
        "beta_fast": 4.0,
        "beta_slow": 0.25,
    },
}
SCALINGS["yarn, real ends"] = {**SCALINGS["yarn"], "truncate": False, "attention_factor": 1.5}
every_layout = pytest.mark.parametrize("layout", ["half_split", "interleaved"])


def arrays():
    """Query and key, the key with fewer heads."""
    return random(B, T, H, K, seed=1), random(B, S, G, K, seed=2)


POSITIONS = {
    "from 0": (np.arange(T), np.arange(S)),
    "a query later than its keys": (np.arange(T) + 6, np.arange(S)),
    "rows of their own": (
        np.array([[0, 1, 2, 3, 4], [9, 10, 11, 12, 13]]),
        np.array([[0, 0, 0, 1, 2, 3, 4], [7, 8, 9, 10, 11, 12, 13]]),
    ),
    "a row for each query": (np.array([[0, 1, 2, 3, 4], [30, 3, 2, 1, 0]]), np.arange(S)),
}


# JAX has float64 only after its x64 mode was switched on for the process.
ROUNDING = {"float32": 1e-5} | ({} if keras.backend.backend() == "jax" else {"float64": 1e-11})


@pytest.mark.parametrize("scaling", SCALINGS)
@every_layout
@pytest.mark.parametrize("where", POSITIONS)
def test_encode_is_the_definition(where, layout, scaling):
    at, key_at = POSITIONS[where]
    last = np.maximum(at.max(axis=-1), key_at.max(axis=-1))
    given = {"layout": layout, **SCALINGS[scaling]}
    for dtype, rounding in ROUNDING.items():
        both = [x.astype(dtype) for x in arrays()]
        tensors = map(keras.ops.convert_to_tensor, both)
        found = Rotary(**given).encode(*tensors, at, key_at)
        for x, x_at, out in zip(both, (at, key_at), found, strict=True):
            assert keras.backend.standardize_dtype(out.dtype) == dtype
            expected = rotated(x, x_at, last, **given)
            np.testing.assert_allclose(numpy(out), expected, rtol=rounding, atol=rounding / 3)
        assert np.abs(numpy(found[0]) - both[0]).max() > 0.1


# Precision


@pytest.mark.parametrize("first", [0, 4090, 10**5, 2**20, 2**24 - 8])
@pytest.mark.parametrize("given", [{}, SCALINGS["linear"], SCALINGS["yarn"]])
def test_angles_are_as_good_far_out_as_near(first, given):
    at = (first + np.arange(8)).astype("int32")
    rotary = Rotary(**given)
    # A query of ones and zeros shows cosines and sines.
    x = np.concatenate([np.ones((1, 8, 1, 32)), np.zeros((1, 8, 1, 32))], axis=-1).astype("float32")
    expected = rotated(x, at, first + 7, **given)

    def encode(x, at):
        return rotary.encode(x, x, at, at)[0]

    encoders = [encode] + [program(encode, jit_compile=True)] * (first == 10**5 and not given)
    for function in encoders:
        found = function(*map(keras.ops.convert_to_tensor, (x, at)))
        assert np.abs(numpy(found) - expected).max() < 2e-6


@every_layout
@pytest.mark.parametrize("dtype, rounding", [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_half_precision_is_rounded_once(dtype, rounding, layout):
    x = keras.ops.cast(random(B, T, H, K), dtype)
    both = np.arange(T) + 131_072, np.arange(T)
    for out, at in zip(Rotary(layout=layout).encode(x, x, *both), both, strict=True):
        assert keras.backend.standardize_dtype(out.dtype) == dtype
        exact = rotated(numpy(keras.ops.cast(x, "float32")), at, 0, layout=layout)
        found = numpy(keras.ops.cast(out, "float32"))
        np.testing.assert_allclose(found, exact, rtol=1.001 * rounding, atol=3e-6)


# In layers and functions


def test_cosines_do_not_see_the_length_that_yarn_gives():
    x, outputs = random(B, T, K), []
    for factor in (1.0, 3.0):
        rotary = Rotary(**{**SCALINGS["yarn"], "attention_factor": factor})
        layer = Attention(score="cosine", position=rotary)
        layer.build(x.shape)
        outputs.append(numpy(compiled(layer, x)))
    np.testing.assert_allclose(*outputs, rtol=1e-5)
