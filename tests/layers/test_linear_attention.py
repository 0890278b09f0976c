"""Layers in time linear in the length, beside their equations."""

import itertools

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.feature_maps import RandomFeatures
from tests.arrays import numpy, random
from tests.compiled import call
from tests.gradients import gradients
from tests.layers.test_equations import favor, named

B, T, D, H, K, V = 2, 9, 8, 2, 4, 3
X = random(B, T, D)


def test_random_features_estimate_softmax():
    # Of short vectors: the variance grows with the exponential of squared lengths.
    softmax, x = ka.MultiHeadAttention(H, K), X / 4
    expected = numpy(softmax(x))
    layer = ka.LinearAttention(H, K, feature_map=RandomFeatures(4096, seed=2))
    layer.build(X.shape)
    vectors = layer.feature_map.vectors
    assert not vectors.trainable and any(vectors is w for w in layer.weights)
    for mine, other in zip(layer.trainable_weights, softmax.weights, strict=True):
        mine.assign(other)
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=0.05 * np.abs(expected).max())


def test_random_features_are_drawn_by_the_seed_of_keras():
    found = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        layer = ka.LinearAttention(H, K, feature_map="favor")
        layer.build(X.shape)
        found.append(numpy(layer.feature_map.vectors))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 0.1


def test_vectors_are_drawn_anew():
    """In a compiled step, where a map of two layers may be drawn anew between them; and by hand."""
    features = RandomFeatures(6, seed=1, redraw_every=3)
    x = y = keras.Input((T, D))
    for _ in range(2):
        y = ka.LinearAttention(H, K, feature_map=features)(y)
    model = keras.Model(x, y)
    model.compile("adam", "mse")
    found = [numpy(features.vectors)]
    for _ in range(5):
        model.fit(X, X, verbose=0)
        model.predict(X, verbose=0)
        found.append(numpy(features.vectors))
    assert int(features.age) == 1
    for seed in (4, 4, None):
        features.redraw(seed)
        found.append(numpy(features.vectors))
    assert int(features.age) == 0
    # Of the ten calls of five steps, the fourth, the seventh and the tenth have new vectors.
    changes = [np.abs(one - other).max() > 0.1 for one, other in itertools.pairwise(found)]
    assert changes == [False, True, False, True, True, True, False, True]
    for vectors in found:
        for group in (vectors[:, :K], vectors[:, K:]):
            unit = group / np.linalg.norm(group, axis=0)
            np.testing.assert_allclose(unit.T @ unit, np.eye(group.shape[1]), atol=1e-5)


@pytest.mark.parametrize("cls", [ka.GatedLinearAttention, ka.GatedDeltaNet])
def test_a_token_masked_as_a_key_sees_no_later_ones(cls):
    layer, mask = cls(H, K, V, conv_kernel_size=2), np.ones((B, T), bool)
    mask[:, 2] = False
    expected = numpy(call(layer, X, key_mask=mask))
    changed = np.concatenate([X[:, :5], X[:, 5:] + 1], axis=1)
    found = numpy(layer(changed, key_mask=mask))
    # A chunk is summed relative to its end, so rounding may differ.
    np.testing.assert_allclose(found[:, :5], expected[:, :5], atol=1e-5)
    assert np.isfinite(expected).all()


def test_cross_attention_may_be_causal():
    layer, memory = ka.LinearAttention(H, K), X[:, :5]
    for query, key in ((X, memory), (memory, X)):
        expected = layer(query, key, use_causal_mask=True, return_attention_scores=True)[0]
        found = layer(query, key, use_causal_mask=True)
        np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-4, atol=1e-5)


def test_convolutions_start_near_the_identity():
    layer = ka.GatedDeltaNet(H, K, V, conv_kernel_size=4)
    layer.build(X.shape)
    for kernel in map(numpy, layer.conv_kernels):
        np.testing.assert_allclose(kernel[-1], 1, atol=0.05)
        assert 0.01 < np.abs(kernel[:-1]).max() <= 0.05


@pytest.mark.parametrize("causal", [False, True])
def test_random_features_of_long_keys(causal):
    """Exponents far outside of float32: whole, by pairs, in pieces, and their gradients."""
    options = {"use_bias": False, "causal": causal}
    layer = ka.LinearAttention(2, 32, feature_map=RandomFeatures(48, seed=0), **options)
    rng, length = np.random.default_rng(0), 70
    x = rng.normal(size=(2, length, D))
    layer.build(x.shape)
    for dense in (layer.query_dense, layer.key_dense):
        dense.kernel.assign(6 * D**-0.5 * rng.normal(size=dense.kernel.shape))
    layer.output_dense.kernel.assign(np.eye(64).reshape(2, 32, 64)[..., :D])
    mask = np.ones((2, length), bool)
    mask[1, 1:3] = mask[1, 66:] = False
    seen = mask[:, None, None] & (np.tri(length, dtype=bool) | (not causal))

    def expected(x):
        return np.where(mask[..., None], favor(layer, named(layer), x, seen)[0], 0.0)

    right, narrow = expected(x), x.astype("float32")
    found = [layer(narrow, query_mask=mask)]
    found.append(layer(narrow, query_mask=mask, return_attention_scores=True)[0])
    if causal:
        cache, parts = layer.make_cache(2), []
        for cut in (slice(0, 1), slice(1, 35), slice(35, 36), slice(36, length)):
            part, cache = layer(narrow[:, cut], query_mask=mask[:, cut], cache=cache)
            parts.append(numpy(part))
        found.append(np.concatenate(parts, axis=1))
    for each in found:
        np.testing.assert_allclose(numpy(each), right, atol=2e-5 * np.abs(right).max())
    (slope,) = gradients(
        lambda x: keras.ops.sum(keras.ops.square(layer(x, query_mask=mask))), [narrow]
    )
    direction = rng.normal(size=x.shape)
    ahead, behind = (np.square(expected(x + step * direction)).sum() for step in (1e-5, -1e-5))
    np.testing.assert_allclose((slope * direction).sum(), (ahead - behind) / 2e-5, rtol=2e-3)


@pytest.mark.ci
def test_a_cache_of_random_features_without_their_largest_exponents():
    """Those of 0.2.0 had sums of the features themselves."""
    layer = ka.LinearAttention(H, K, V, causal=True, feature_map=RandomFeatures(16, seed=1))
    expected = numpy(call(layer, X))
    cache = layer.make_cache(B)
    _, cache = call(layer, X[:, :4], cache=cache)
    sums = cache["state"] * keras.ops.exp(cache["largest"])[..., None]
    former = {"state": sums, "index": cache["index"]}
    for at in (slice(4, 5), slice(5, None)):
        last, former = call(layer, X[:, at], cache=former)
    assert set(former) == {"state", "index"}
    np.testing.assert_allclose(numpy(last), expected[:, 5:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("name", ["Retention", "GatedLinearAttention", "GatedDeltaNet"])
def test_sums_beyond_float16_are_normalized(name, norm):
    wide = getattr(ka, name)(2, 8, head_norm=norm)
    half = type(wide).from_config({**wide.get_config(), "dtype": "mixed_float16"})
    x = 40 * np.random.default_rng(0).normal(size=(1, 20, 16)).astype("float32")
    expected = numpy(call(wide, x))
    half.build(x.shape)
    half.set_weights(wide.get_weights())
    assert np.abs(numpy(call(half, x)) - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("name", ["GatedLinearAttention", "GatedDeltaNet"])
def test_gradients_of_small_heads_are_finite_in_float16(name, norm):
    """The norm of a head whose silu is nearly 0 multiplies its gradient by a thousand."""
    options = {"head_norm": norm, "conv_kernel_size": 4, "dtype": "mixed_float16"}
    layer = getattr(ka, name)(4, 16, **options)
    x = 300 * np.random.default_rng(0).normal(size=(2, 24, 64)).astype("float32")
    layer.build(x.shape)
    (found,) = gradients(lambda x: 1024 * keras.ops.mean(keras.ops.cast(layer(x), "float32")), [x])
    assert np.isfinite(found).all() and np.abs(found).max() > 0


# Low rank


@pytest.mark.parametrize("score", ["scaled_dot", "general", "additive"])
def test_nystrom_of_all_tokens_is_softmax(score):
    options = {} if score == "scaled_dot" else {"score": score, "num_key_value_heads": 1}
    softmax = ka.MultiHeadAttention(H, K, V, **options)
    expected = numpy(call(softmax, X))
    layer = ka.NystromAttention(H, K, T, V, num_iterations=16, **options)
    layer.build(X.shape)
    layer.set_weights(softmax.get_weights())
    np.testing.assert_allclose(numpy(call(layer, X)), expected, rtol=1e-3, atol=1e-3)


def test_it_is_built_of_the_lengths_that_keras_makes_up():
    """As PyTorch's files have them: 83 positions, more than there are columns."""
    layer = ka.LinformerAttention(2, 4, max_length=32, rank=4)
    layer.build_from_config({"input_shape": (83, 83, 16)})
    assert layer(np.zeros((1, 32, 16), "float32")).shape == (1, 32, 16)


def test_flags_that_are_no_booleans():
    """0 is False, for arrays as for symbols."""
    for x in (np.zeros((1, 5, 8), "float32"), keras.Input((5, 8))):
        for layer in (ka.Retention(2, 4), ka.NystromAttention(2, 4)):
            assert layer(x, return_attention_scores=0).shape[1:] == (5, 8)
            with pytest.raises(ValueError, match="Received: return_attention_scores"):
                layer(x, return_attention_scores=1)


def test_symbols_have_as_many_keys_as_arrays():
    """Those of all attended axes, and of no others."""
    layer = ka.LinformerAttention(2, 4, max_length=10, rank=4, attention_axes=(2,))
    assert layer(keras.Input((20, 10, 8))).shape == (None, 20, 10, 8)
    assert layer(np.zeros((1, 20, 10, 8), "float32")).shape == (1, 20, 10, 8)
    for x in (np.zeros((1, 20, 10, 8), "float32"), keras.Input((20, 10, 8))):
        with pytest.raises(ValueError, match=r"max_length=50 keys\. Received: 200"):
            ka.LinformerAttention(2, 4, max_length=50, rank=4)(x)
    unknown = ka.LinformerAttention(2, 4, max_length=50, rank=4)(keras.Input((None, 10, 8)))
    assert unknown.shape == (None, None, 10, 8)
