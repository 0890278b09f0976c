"""Caches and norms where JAX has int64, which sums of int32 then are, and float64."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns
from tests.compiled import call

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="an option of JAX")

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
MASK = np.array([[1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 1]], bool)


@pytest.mark.parametrize(
    ("position", "window"), [("rotary", None), ("relative_bias", patterns.SlidingWindow(2, 0))]
)
def test_a_text_in_pieces_is_the_text_at_once(window, position):
    jax.config.update("jax_enable_x64", True)
    try:
        layer = ka.MultiHeadAttention(2, 4, position=position, pattern=window)
        expected = call(layer, X[1:, [0, 1, 2, 5]], use_causal_mask=True)
        cache, outputs = layer.make_cache(2, 6), []
        step = jax.jit(lambda x, mask, cache: layer(x, cache=cache, query_mask=mask))
        for piece in (slice(0, 3), slice(3, 4), slice(4, 6)):
            output, cache = step(X[:, piece], MASK[:, piece], cache)
            outputs.append(output)
        assert str(cache["index"].dtype) == "int32"
        found = keras.ops.concatenate(outputs, axis=1)[1:, [0, 1, 2, 5]]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    finally:
        jax.config.update("jax_enable_x64", False)


def test_a_norm_of_float64_is_computed_in_it():
    jax.config.update("jax_enable_x64", True)
    try:
        x = X.astype("float64")
        expected = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(ka.RMSNorm(dtype="float64")(x), expected, rtol=1e-12)
    finally:
        jax.config.update("jax_enable_x64", False)
