"""Layers of dtype float64 compute in float64, on every backend that has it.

On PyTorch Keras's `matmul`, `tensordot`, `maximum`, `minimum` and `cumsum` compute it in float32.
"""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import alignments, normalizations, ops, positions, regularizers, scores

pytestmark = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX has no float64 unless it is told to"
)

X = np.random.default_rng(0).normal(size=(2, 6, 8))
LAYERS = {
    "MultiHeadAttention": lambda **kwargs: ka.MultiHeadAttention(2, 4, **kwargs),
    "without biases": lambda **kwargs: ka.MultiHeadAttention(2, 4, use_bias=False, **kwargs),
    "Attention": lambda **kwargs: ka.Attention(2, 4, **kwargs),
    "rotary": lambda **kwargs: ka.Attention(2, 4, position="rotary", **kwargs),
    "alibi": lambda **kwargs: ka.Attention(2, 4, position="alibi", **kwargs),
    "relative_bias": lambda **kwargs: ka.Attention(2, 4, position="relative_bias", **kwargs),
    "cosine": lambda **kwargs: ka.Attention(2, 4, score="cosine", **kwargs),
    "general": lambda **kwargs: ka.Attention(score=scores.General(), **kwargs),
    "sparsemax": lambda **kwargs: ka.Attention(2, 4, normalization="sparsemax", **kwargs),
    "sigmoid": lambda **kwargs: ka.Attention(2, 4, normalization="sigmoid", **kwargs),
    "sink and cap": lambda **kwargs: ka.Attention(
        2, 4, use_sink=True, logit_soft_cap=3.0, **kwargs
    ),
    "gate": lambda **kwargs: ka.MultiHeadAttention(2, 4, use_gate=True, **kwargs),
    "LocalAttention": lambda **kwargs: ka.LocalAttention(2, "predictive", **kwargs),
    "RelativePositionAttention": lambda **kwargs: ka.RelativePositionAttention(2, 4, 2, **kwargs),
    "AttentionPooling": lambda **kwargs: ka.AttentionPooling(2, 2, 4, **kwargs),
    "FeedForward": lambda **kwargs: ka.FeedForward(8, **kwargs),
    "TransformerBlock": lambda **kwargs: ka.TransformerBlock(8, 2, **kwargs),
    "GatedLinearAttention": lambda **kwargs: ka.GatedLinearAttention(2, 4, **kwargs),
    "GatedDeltaNet": lambda **kwargs: ka.GatedDeltaNet(2, 4, **kwargs),
    "Retention": lambda **kwargs: ka.Retention(2, 4, **kwargs),
    "LinearAttention": lambda **kwargs: ka.LinearAttention(2, 4, **kwargs),
    "NystromAttention": lambda **kwargs: ka.NystromAttention(2, 4, 3, **kwargs),
    "LongformerAttention": lambda **kwargs: ka.LongformerAttention(2, 4, 1, **kwargs),
    "DifferentialAttention": lambda **kwargs: ka.DifferentialAttention(2, 4, **kwargs),
    "MultiHeadLatentAttention": lambda **kwargs: ka.MultiHeadLatentAttention(
        2, 4, rope_dim=2, latent_dim=6, **kwargs
    ),
    "entmax": lambda **kwargs: ka.Attention(2, 4, normalization="entmax", **kwargs),
    "convolved": lambda **kwargs: ka.GatedDeltaNet(2, 4, conv_kernel_size=3, **kwargs),
    "PatchEmbedding": lambda **kwargs: ka.PatchEmbedding(
        (2,), 4, use_bias=False, data_format="channels_last", **kwargs
    ),
    "PatchMerging": lambda **kwargs: ka.PatchMerging((6,), **kwargs),
    "LinearAttention, favor": lambda **kwargs: ka.LinearAttention(
        2, 4, feature_map="favor", **kwargs
    ),
    # All 5 experts for 12 positions with 2 each, and not all of 30.
    "MixtureOfExperts": lambda **kwargs: ka.MixtureOfExperts(5, 2, 6, **kwargs),
    "MixtureOfExperts, few": lambda **kwargs: ka.MixtureOfExperts(30, 2, 6, **kwargs),
    "MixtureOfExperts, limit": lambda **kwargs: ka.MixtureOfExperts(
        5, 2, 6, gated=True, limit=0.3, **kwargs
    ),
    "xpos": lambda **kwargs: ka.Attention(2, 4, position="xpos", **kwargs),
    "fire": lambda **kwargs: ka.Attention(2, 4, position="fire", **kwargs),
    "kerple": lambda **kwargs: ka.Attention(2, 4, position="kerple", **kwargs),
    "cope": lambda **kwargs: ka.Attention(2, 4, position=positions.CoPE(4), **kwargs),
}


def curvature(function, x):
    """f(x + h) − 2 f(x) + f(x − h): about h² in float64, 1e-7 where float32 rounds."""
    step = 1e-7 * np.random.default_rng(1).normal(size=x.shape)
    found = [function(keras.ops.convert_to_tensor(x + sign * step)) for sign in (1, 0, -1)]
    assert {keras.backend.standardize_dtype(y.dtype) for y in found} == {"float64"}
    after, here, before = map(keras.ops.convert_to_numpy, found)
    return np.abs(after - 2 * here + before).max()


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_in_float64(name):
    layer = LAYERS[name](dtype="float64")
    layer(keras.ops.convert_to_tensor(X))
    assert curvature(layer, X) < 1e-11


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
    rnn(keras.ops.convert_to_tensor(X), memory)
    # At inference monotonic ones choose.
    training = name in ("monotonic", "mocha")
    assert curvature(lambda x: rnn(x, memory, training=training), X) < 1e-11


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
