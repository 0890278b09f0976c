"""Layers of dtype float64 compute in float64, on every backend that has it.

On PyTorch Keras's `matmul`, `tensordot`, `maximum`, `minimum` and `cumsum` compute it in float32.
"""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import alignments, normalizations, ops, regularizers

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX has no float64 unless it is told to"
)

X = np.random.default_rng(0).normal(size=(2, 6, 8))


def curvature(function, x):
    """f(x + h) − 2 f(x) + f(x − h): about h² in float64, 1e-7 where float32 rounds."""
    step = 1e-7 * np.random.default_rng(1).normal(size=x.shape)
    found = [function(keras.ops.convert_to_tensor(x + sign * step)) for sign in (1, 0, -1)]
    assert {keras.backend.standardize_dtype(y.dtype) for y in found} == {"float64"}
    after, here, before = map(keras.ops.convert_to_numpy, found)
    return np.abs(after - 2 * here + before).max()


class Mixing(keras.layers.Layer):
    """A cell without Keras's `matmul`."""

    state_size = 4

    def call(self, inputs, states):
        state = keras.ops.tanh(states[0] + inputs[:, :4] - inputs[:, -4:])
        return state, [state]


ALIGNMENTS = {
    "none": lambda: None,
    "coverage": alignments.Coverage,
    "location_sensitive": lambda: alignments.LocationSensitive(2, 3),
    "monotonic": lambda: alignments.Monotonic(noise=0.0),
    "mocha": lambda: alignments.MoChA(noise=0.0),
}


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_alignments_compute_in_float64(name):
    alignment, dtype = ALIGNMENTS[name](), "float64"
    cell = ka.AttentionCell(Mixing(dtype=dtype), "additive", alignment=alignment, dtype=dtype)
    rnn = ka.AttentionRNN(cell, return_sequences=True, dtype="float64")
    memory = keras.ops.convert_to_tensor(np.random.default_rng(4).normal(size=(2, 5, 3)))
    x = X[:, :2]
    rnn(keras.ops.convert_to_tensor(x), memory)
    # At inference monotonic ones choose.
    training = name in ("monotonic", "mocha")
    assert curvature(lambda x: rnn(x, memory, training=training), x) < 1e-11


@pytest.mark.parametrize("layer", [ka.Attention, ka.MultiHeadAttention])
def test_a_cache_of_a_context_is_in_float64(layer):
    layer = layer(2, 4, dtype="float64")
    expected, cache = layer(X, X), layer.cache_context(X)
    assert keras.backend.standardize_dtype(cache["key"].dtype) == "float64"
    found, _ = layer(X, cache=cache)
    difference = keras.ops.convert_to_numpy(keras.ops.abs(found - expected))
    assert difference.max() < 1e-14


def test_the_weights_of_a_cell_are_in_float64():
    attention = ka.Attention(2, 4, dtype="float64")
    wrapped = keras.layers.SimpleRNNCell(8, dtype="float64")
    cell = ka.AttentionCell(wrapped, attention, return_attention_scores=True, dtype="float64")
    before = np.random.default_rng(1).normal(size=(2, 8))
    _, found = ka.AttentionRNN(cell, dtype="float64")(X[:, :1], X, initial_state=before)
    _, expected = attention(before[:, None], X, return_attention_scores=True)
    difference = keras.ops.convert_to_numpy(keras.ops.abs(found - expected[:, :, 0]))
    assert difference.max() < 1e-14


def test_the_output_projection_of_an_embedding_computes_in_float64():
    layer = ka.ScaledEmbedding(10, 8, dtype="float64")
    layer(np.array([[1, 2]]))
    assert curvature(lambda x: layer(x, reverse=True), X) < 1e-11


def test_tied_logits_compute_in_float64():
    layer = ka.Logits(10, dtype="float64")
    table = np.random.default_rng(2).normal(size=(10, 8))
    assert curvature(lambda x: layer(x, keras.ops.convert_to_tensor(table)), X) < 1e-11


@pytest.mark.parametrize("name", ["entropy", "coverage", "doubly_stochastic", "guided"])
def test_losses_on_weights_compute_in_float64(name):
    loss = regularizers.get(name)
    mask = keras.ops.ones((2, 1, 1, 8), "bool")
    weights = np.random.default_rng(3).uniform(0.1, 0.9, (2, 1, 6, 8))
    assert curvature(lambda x: loss(x, mask), weights) < 1e-11


def test_sparsemax_finds_its_support_in_float64():
    """A key 1e-10 above the threshold has that weight, one below it none."""
    key = np.array([1.0, 1e-10, -1e-10]).reshape(1, 3, 1, 1)
    _, weights = ops.attend(
        np.ones((1, 1, 1, 1)), key, key, score="dot", normalization=normalizations.Sparsemax(),
        return_attention_scores=True,
    )  # fmt: skip
    expected = [1 - 5e-11, 5e-11, 0.0]
    found = keras.ops.convert_to_numpy(weights).ravel()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
