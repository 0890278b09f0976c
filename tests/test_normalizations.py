"""Normalizations: the built-in ones against their equations, and a user's own in every layer."""

import json

import keras
import numpy as np
import pytest

from keras_attention import (
    Attention,
    AttentionPooling,
    MultiHeadAttention,
    TransformerBlock,
    normalizations,
    ops,
)
from tests import definition
from tests.arrays import numpy, random

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8


QUERY, KEY, VALUE = random(B, T, H, K, seed=1), random(B, S, H, K, seed=2), random(B, S, H, K)
# A padded key in one sequence, and a query that has none.
MASK = (np.arange(S) != np.array([[2], [S], [S]]))[:, None, None]
MASK = MASK & (np.arange(T) != 1)[:, None]


# Equations


# That need no argument; one has weights, which a layer builds.
NAMES = [name for name in normalizations.BUILTIN if name != "top_k"]
FUNCTIONS = [name for name in NAMES if name != "adaptive_entmax"]


@pytest.mark.parametrize("name", NAMES)
def test_normalization_is_its_equation(name):
    scores = 3 * random(B, H, T, S)
    normalization = normalizations.get(name)
    if not normalization.built:
        normalization.build(QUERY.shape, KEY.shape)
    weights = numpy(normalization.normalize(keras.ops.convert_to_tensor(scores), None))
    for index in np.ndindex(B, H, T):
        expected = definition.normalize(list(scores[index].astype("float64")), name)
        np.testing.assert_allclose(weights[index], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_kernel_normalizes_over_the_keys_that_are_allowed(name):
    output, weights = ops.attend(
        QUERY, KEY, VALUE, mask=MASK, normalization=name, return_attention_scores=True
    )
    expected, expected_weights = definition.attend(QUERY, KEY, VALUE, mask=MASK, normalization=name)
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(numpy(weights)[:, :, 1], 0.0)


def test_with_softmax_keys_compete_and_with_sigmoid_they_do_not():
    louder = KEY.copy()
    louder[:, 0] *= 3
    for name, competes in (("softmax", True), ("sigmoid", False)):
        before, after = (
            numpy(
                ops.attend(QUERY, key, VALUE, normalization=name, return_attention_scores=True)[1]
            )
            for key in (KEY, louder)
        )
        assert np.abs(after - before)[..., 0].max() > 0.01
        assert (np.abs(after - before)[..., 1:].max() > 0.01) == competes


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_uses_its_normalization(name):
    layer = Attention(normalization=name)
    x, memory = random(B, T, D), random(B, S, D, seed=3)
    output, weights = layer(x, memory, return_attention_scores=True)
    heads = x[:, :, None], memory[:, :, None], memory[:, :, None]
    expected, expected_weights = definition.attend(*heads, normalization=name)
    np.testing.assert_allclose(numpy(output), expected[:, :, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-5, atol=1e-6)


def test_weights_are_made_in_float32_in_mixed_precision():
    seen = []

    class Watching(normalizations.Normalization):
        def normalize(self, scores, mask):
            seen.append(keras.backend.standardize_dtype(scores.dtype))
            return keras.ops.softmax(scores)

    layer = Attention(H, K, normalization=Watching(), dtype="mixed_bfloat16")
    output = layer(random(B, T, D), random(B, S, D))
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert set(seen) == {"float32"}


# The slot


def test_get_takes_a_name_a_normalization_or_a_config():
    for name in FUNCTIONS:
        normalization = normalizations.get(name)
        assert normalizations.get(normalization) is normalization
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(normalization)))
        assert normalizations.get(config) == normalization
    softmax, sigmoid = map(normalizations.get, ("softmax", "sigmoid"))
    assert softmax != sigmoid and hash(softmax) != hash(sigmoid)


# Normalizations of a user's own


@keras.saving.register_keras_serializable(package="test_normalizations")
class Power(normalizations.Normalization):
    """Softmax with its own base, by itself, over the keys that the mask leaves."""

    def __init__(self, base=2.0):
        self.base = base

    def normalize(self, scores, mask):
        powers = keras.ops.exp(
            np.log(self.base) * (scores - keras.ops.max(scores, axis=-1, keepdims=True))
        )
        return powers / keras.ops.sum(powers, axis=-1, keepdims=True)


@keras.saving.register_keras_serializable(package="test_normalizations")
class Uniform(normalizations.Normalization):
    """Attends to all alike, and does not look at the mask."""

    def normalize(self, scores, mask):
        return keras.ops.ones_like(scores)


def test_a_normalization_of_ones_own_is_what_it_says():
    _, weights = ops.attend(
        QUERY, KEY, VALUE, mask=MASK, normalization=Power(2.0), return_attention_scores=True
    )
    # Powers of two are a softmax of scores times log 2.
    _, expected = definition.attend(QUERY, KEY, VALUE, mask=MASK, scale=np.log(2) / np.sqrt(K))
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-5, atol=1e-7)


def test_masked_keys_get_nothing_whatever_a_normalization_gives_them():
    output, weights = ops.attend(
        QUERY, KEY, VALUE, mask=MASK, normalization=Uniform(), return_attention_scores=True
    )
    np.testing.assert_array_equal(numpy(weights), np.broadcast_to(MASK, weights.shape))
    expected = np.einsum("bhts,bshv->bthv", np.broadcast_to(MASK, weights.shape), VALUE)
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-5, atol=1e-6)


def test_the_mask_is_given_to_the_normalization():
    seen = []

    class Watching(normalizations.Normalization):
        def normalize(self, scores, mask):
            seen.append(mask)
            return keras.ops.softmax(scores)

    ops.attend(QUERY, KEY, VALUE, normalization=Watching())
    ops.attend(QUERY, KEY, VALUE, mask=MASK, pattern="causal", normalization=Watching())
    assert seen[0] is None
    causal = np.arange(S)[None] <= np.arange(T)[:, None]
    np.testing.assert_array_equal(numpy(seen[1]), MASK & causal)


def test_a_normalization_of_ones_own_compares_by_value():
    assert Power(2.0) == Power(base=2.0) != Power(3.0)
    assert hash(Power(2.0)) == hash(Power(2.0))
    assert repr(Power(3.0)) == "Power(base=3.0)"


def test_a_normalization_of_ones_own_saves_and_loads_in_every_layer(tmp_path):
    slot = {"normalization": Power(1.5)}
    layers = [
        Attention(H, K, **slot),
        MultiHeadAttention(H, K, **slot),
        TransformerBlock(16, H, **slot),
    ]
    x = keras.Input((None, D))
    model = keras.Model(x, keras.layers.add([layer(x) for layer in layers]))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for layer in layers:
        assert loaded.get_layer(layer.name).normalization == Power(1.5)
    x = random(B, T, D)
    np.testing.assert_allclose(numpy(loaded(x)), numpy(model(x)), rtol=1e-6)
    for layer in layers:
        plain = type(layer).from_config({**layer.get_config(), "normalization": "softmax"})
        plain.build(x.shape)
        plain.set_weights(layer.get_weights())
        assert np.abs(numpy(plain(x)) - numpy(layer(x))).max() > 1e-3


def test_a_normalization_of_ones_own_pools():
    x = random(B, S, D)
    output = AttentionPooling(normalization=Uniform())(x)
    np.testing.assert_allclose(numpy(output), x.sum(axis=1), rtol=1e-5, atol=1e-5)
