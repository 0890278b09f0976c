"""Layers that attend through a state, against their equations in float64 and in three forms."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.feature_maps import RandomFeatures
from tests.arrays import numpy
from tests.compiled import call
from tests.gradients import gradients
from tests.layers.projected import heads, output

B, T, D, H, K, V = 2, 9, 8, 2, 4, 3
X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")

LAYERS = {
    "linear": lambda **kwargs: ka.LinearAttention(H, K, V, causal=True, **kwargs),
    "favor": lambda **kwargs: ka.LinearAttention(
        H, K, V, causal=True, feature_map=RandomFeatures(16, seed=1), **kwargs
    ),
    "retention": lambda **kwargs: ka.Retention(H, K, V, decays=(0.5, 0.9), **kwargs),
    "gated": lambda **kwargs: ka.GatedLinearAttention(
        H, K, V, decay_rank=3, decay_temperature=2.0, **kwargs
    ),
    "delta": lambda **kwargs: ka.GatedDeltaNet(H, K, V, **kwargs),
    "delta-constant": lambda **kwargs: ka.GatedDeltaNet(H, K, V, use_decay=False, **kwargs),
    "gated-convolved": lambda **kwargs: ka.GatedLinearAttention(
        H, K, V, conv_kernel_size=2, **kwargs
    ),
    "delta-convolved": lambda **kwargs: ka.GatedDeltaNet(H, K, V, conv_kernel_size=4, **kwargs),
}


@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_is_equation_four(causal):
    layer = ka.LinearAttention(H, K, V, causal=causal)
    found = numpy(call(layer, X))
    query, key, value = heads(layer, X)
    query, key = (np.where(x > 0, x + 1, np.exp(x)) for x in (query, key))
    weights = np.einsum("bthk,bshk->bhts", query, key)
    weights *= np.tril(np.ones((T, T))) if causal else 1
    weights /= weights.sum(-1, keepdims=True)
    expected = output(layer, np.einsum("bhts,bshv->bthv", weights, value))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    same, scores = call(layer, X, return_attention_scores=True)
    np.testing.assert_allclose(numpy(same), found, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(scores), weights, rtol=1e-4, atol=1e-6)


def test_retention_is_equations_five_to_eight():
    layer = LAYERS["retention"](position=None)
    found = numpy(call(layer, X))
    query, key, value = heads(layer, X)
    ages = np.arange(T)[:, None] - np.arange(T)
    decays = np.stack([np.where(ages >= 0, gamma ** np.abs(ages), 0.0) for gamma in (0.5, 0.9)])
    weights = np.einsum("bthk,bshk->bhts", query, key) / np.sqrt(K) * decays
    combined = np.einsum("bhts,bshv->bthv", weights, value)
    combined /= np.sqrt(np.mean(combined**2, axis=-1, keepdims=True) + 1e-6)
    gate = np.einsum("btd,dhv->bthv", X, numpy(layer._gate_dense.kernel))
    expected = output(layer, combined * gate / (1 + np.exp(-gate)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def silu(x):
    return x / (1 + np.exp(-x))


def gated(layer, combined):
    """The layer's output of heads (B, T, H, V), normalized and gated."""
    combined = combined / np.sqrt(np.mean(combined**2, axis=-1, keepdims=True) + 1e-6)
    return output(layer, combined * silu(projected(layer, "gate")))


def projected(layer, *names):
    """A product of the inputs and the kernels of these names."""
    x = X.astype("float64")
    for name in names:
        x = np.tensordot(x, numpy(getattr(layer, f"_{name}_dense").kernel), axes=1)
    return x


def convolved(layer, *arrays):
    """Heads (B, T, H, K), each of them the sum of those before it by the layer's kernels."""
    found = []
    for x, kernel in zip(arrays, map(numpy, layer.conv_kernels), strict=True):
        before = np.pad(x, [(0, 0), (len(kernel) - 1, 0), (0, 0), (0, 0)])
        windows = [before[:, t : t + len(kernel)] for t in range(x.shape[1])]
        found.append(np.stack([np.einsum("bjhk,jhk->bhk", w, kernel) for w in windows], axis=1))
    return found


@pytest.mark.parametrize("name", ["gated", "gated-convolved"])
def test_gated_linear_attention_is_its_recurrence(name):
    layer = LAYERS[name](**({"decay_temperature": 2.0} if name == "gated-convolved" else {}))
    found = numpy(call(layer, X))
    query, key, value = heads(layer, X)
    if layer.conv_kernel_size is not None:
        query, key, value = map(silu, convolved(layer, query, key, value))
    decay = (1 / (1 + np.exp(-projected(layer, "decay_in", "decay")))) ** (1 / 2)
    state, outputs = np.zeros((B, H, K, V)), []
    for t in range(T):
        state = decay[:, t][..., None] * state + key[:, t][..., None] * value[:, t][:, :, None]
        outputs.append(np.einsum("bhk,bhkv->bhv", query[:, t], state) / np.sqrt(K))
    np.testing.assert_allclose(found, gated(layer, np.stack(outputs, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["delta", "delta-convolved"])
def test_the_gated_delta_net_is_its_recurrence(name):
    layer = LAYERS[name]()
    found = numpy(call(layer, X))
    query, key, value = heads(layer, X)
    if layer.conv_kernel_size is not None:
        query, key, value = convolved(layer, query, key, value)
    query, key, value = map(silu, (query, key, value))
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    rate = 1 / (1 + np.exp(-projected(layer, "rate")))
    scale, bias = (numpy(w)[:, None] for w in (layer.decay_scale, layer.decay_bias))
    decay = np.exp(-np.exp(scale) * np.log1p(np.exp(projected(layer, "decay") + bias)))
    state, outputs = np.zeros((B, H, K, V)), []
    for t in range(T):
        k, beta = key[:, t], rate[:, t][..., None]
        state = decay[:, t][..., None] * (
            state - beta * np.einsum("bhk,bhl,bhlv->bhkv", k, k, state)
        )
        state = state + beta * k[..., None] * value[:, t][:, :, None]
        outputs.append(np.einsum("bhk,bhkv->bhv", query[:, t], state) / np.sqrt(K))
    np.testing.assert_allclose(found, gated(layer, np.stack(outputs, 1)), rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("name", ["gated-convolved", "delta-convolved"])
def test_a_token_masked_as_a_key_sees_no_later_ones(name):
    layer, mask = LAYERS[name](), np.ones((B, T), bool)
    mask[:, 2] = False
    expected = numpy(call(layer, X, key_mask=mask))
    changed = np.concatenate([X[:, :5], X[:, 5:] + 1], axis=1)
    found = numpy(layer(changed, key_mask=mask))
    # A chunk is summed relative to its end, so rounding may differ.
    np.testing.assert_allclose(found[:, :5], expected[:, :5], atol=1e-5)
    assert np.isfinite(expected).all()


def test_cross_attention_sees_all_keys():
    layer, memory = ka.LinearAttention(H, K), X[:, :5]
    expected = call(layer, X, memory, return_attention_scores=True)[0]
    np.testing.assert_allclose(numpy(call(layer, X, memory)), numpy(expected), rtol=1e-4, atol=1e-5)
    found = call(layer, X, cache=layer.cache_context(keras.ops.convert_to_tensor(memory)))[0]
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-4, atol=1e-5)
    for query, key in ((X, memory), (memory, X)):
        expected = layer(query, key, use_causal_mask=True, return_attention_scores=True)[0]
        found = layer(query, key, use_causal_mask=True)
        np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_all_pairs():
    layer = LAYERS["linear"](num_key_value_heads=1)
    x = np.random.default_rng(1).normal(size=(1, 70, D)).astype("float32")
    layer(x)
    linear = gradients(lambda x: keras.ops.square(layer(x)), [x])[0]
    pairs = gradients(lambda x: keras.ops.square(layer(x, return_attention_scores=True)[0]), [x])[0]
    np.testing.assert_allclose(linear, pairs, rtol=1e-3, atol=1e-4 * np.abs(pairs).max())


def test_convolutions_start_near_the_identity():
    layer = ka.GatedDeltaNet(H, K, V, conv_kernel_size=4)
    layer.build(X.shape)
    for kernel in map(numpy, layer.conv_kernels):
        np.testing.assert_allclose(kernel[-1], 1, atol=0.05)
        assert 0.01 < np.abs(kernel[:-1]).max() <= 0.05


def of_features(layer, x, mask, causal):
    """FAVOR+ in float64: each pair's sum over features, with the largest exponent subtracted."""
    heads = [
        np.einsum("btd,dhk->bthk", x, numpy(dense.kernel).astype("float64"))
        for dense in (layer.query_dense, layer.key_dense, layer.value_dense)
    ]
    vectors = numpy(layer.feature_map.vectors).astype("float64")
    query, key = (
        y @ vectors - np.square(y).sum(-1, keepdims=True) / 2
        for y in (head * head.shape[-1] ** -0.25 for head in heads[:2])
    )
    logits = np.logaddexp.reduce(query[:, :, None] + key[:, None], axis=-1)
    seen = (
        mask[:, None, :, None]
        & (np.tril(np.ones((x.shape[1],) * 2, bool)) | (not causal))[..., None]
    )
    weights = np.exp(logits - np.max(logits, axis=2, keepdims=True, where=seen, initial=-1e30))
    weights = np.where(seen, weights, 0.0) / np.where(seen, weights, 0.0).sum(2, keepdims=True)
    return np.einsum("btsh,bshv->bthv", weights, heads[2]).reshape(*x.shape[:2], -1)


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

    def expected(x):
        return np.where(mask[..., None], of_features(layer, x, mask, causal)[..., :D], 0.0)

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
    layer = LAYERS["favor"]()
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
