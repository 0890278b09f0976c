"""Soft caps, sinks, and biases of a call."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, MultiHeadAttention, ops
from tests import definition
from tests.arrays import close, random, run
from tests.arrays import wide as numpy
from tests.gradients import gradients, weight_gradients
from tests.layers.small_heads import (
    B,
    D,
    G,
    H,
    K,
    S,
    T,
    V,
    arrays,
    attend,
    heads_of,
    mask,
    randomize,
)


def test_a_soft_cap_bends_scores_before_the_bias():
    query, key, value = arrays(H)
    bias, cap = 3 * random(B, H, T, S, seed=5), 0.8
    found = run(attend(logit_soft_cap=cap, bias=bias, mask=mask()), query, key, value)
    raw = np.einsum("bthk,bshk->bhts", query.astype("float64"), key) / np.sqrt(K)
    assert np.abs(raw).max() > 2 * cap
    nothing = np.zeros((B, T, H, 1)), np.zeros((B, S, H, 1)), value
    expected = definition.attend(*nothing, bias=cap * np.tanh(raw / cap) + bias, mask=mask())
    for answer, correct in zip(found, expected, strict=True):
        close(answer, correct)


def test_a_soft_cap_holds_for_every_score_and_in_layers():
    layer = Attention(H, K, logit_soft_cap=0.3, score="general")
    x = 20 * random(B, T, D)
    layer.build(x.shape)
    (weights,) = run(lambda x: [layer(x, return_attention_scores=True)[1]], x)
    # Scores within ±0.3 leave no weight larger than another by more than e^0.6.
    assert (weights.max(axis=-1) / weights.min(axis=-1) <= np.exp(0.6) + 1e-4).all()
    assert (weights.max(axis=-1) / weights.min(axis=-1)).max() > 1.5


# Sinks


def with_sink(query, key, value, sink, mask=True, bias=0.0):
    """A softmax with one more score, whose share is lost."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    powers = np.exp(np.einsum("bthk,bshk->bhts", query, key) / np.sqrt(K) + bias) * mask
    weights = powers / (powers.sum(axis=-1, keepdims=True) + np.exp(sink)[:, None, None])
    return np.einsum("bhts,bshv->bthv", weights, value), weights


def test_a_sink_takes_its_share_and_gives_nothing():
    query, key, value = arrays(H)
    sink = random(H, seed=6)
    found = run(attend(sink=sink, mask=mask()), query, key, value)
    for answer, correct in zip(found, with_sink(query, key, value, sink, mask()), strict=True):
        close(answer, correct)
    has_keys = mask().any(axis=-1)
    assert (found[1].sum(axis=-1) < 1).all() and (found[1].sum(axis=-1)[has_keys] > 0).all()
    assert (found[0][~has_keys.transpose(0, 2, 1)] == 0).all() and (found[1][~has_keys] == 0).all()


@pytest.mark.parametrize("height", [1e30, -1e30, 3e38, -3e38])
def test_a_sink_of_any_height_is_finite(height):
    query, key, value = arrays(H)
    sink = np.full((H,), height, "float32")
    output, weights = run(attend(sink=sink), query, key, value)
    close(weights.sum(axis=-1), np.full((B, H, T), float(height < 0)))
    assert np.isfinite(output).all()
    found = gradients(
        lambda *x: keras.ops.square(ops.attend(*x[:3], sink=x[3])), [*arrays(H), sink]
    )
    assert all(np.isfinite(gradient).all() for gradient in found)


@pytest.mark.parametrize("make", [Attention, MultiHeadAttention])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_layer_learns_its_sinks(make, policy):
    layer = make(H, K, use_sink=True, num_key_value_heads=G, dtype=policy)
    x = random(B, T, D)
    layer.build(x.shape)
    assert layer.sink.shape == (H,)
    assert keras.backend.standardize_dtype(layer.sink.dtype) == "float32"
    found, _ = weight_gradients(layer, lambda: keras.ops.square(layer(x)))
    (index,) = (i for i, v in enumerate(layer.trainable_variables) if v is layer.sink)
    assert (np.abs(found[index]) > 0).all()
    layer.sink.assign(np.full((H,), 1e4))
    output, weights = layer(x, return_attention_scores=True)
    assert (numpy(weights) == 0).all()
    assert (numpy(output) == 0).all()


# Biases of a call


@pytest.mark.parametrize("shape", [(T, S), (B, T, S), (B, 1, T, S), (B, H, T, S), (1, H, 1, S)])
@pytest.mark.parametrize("make", [Attention, MultiHeadAttention])
def test_a_bias_of_a_call_is_added_to_the_scores(make, shape):
    layer = randomize(make(H, K, V, use_bias=True), (B, T, D), (B, S, D))
    query, value, bias = random(B, T, D), random(B, S, D, seed=1), 2 * random(*shape, seed=2)
    _, weights = run(
        lambda *x: layer(*x[:2], attention_bias=x[2], return_attention_scores=True),
        query,
        value,
        bias,
    )
    q, k, v = (
        heads_of(layer, x, n) for x, n in ((query, "query"), (value, "key"), (value, "value"))
    )
    full = bias[:, None] if len(shape) == 3 else bias
    close(weights, definition.attend(q, k, v, bias=full)[1])


def test_a_bias_may_be_an_input_of_a_model():
    for make in (Attention, MultiHeadAttention):
        query, value = keras.Input((None, D)), keras.Input((None, D))
        bias = keras.Input((H, None, None))
        layer = make(H, K)
        model = keras.Model([query, value, bias], layer(query, value, attention_bias=bias))
        arrays = [random(B, T, D), random(B, S, D, seed=1), random(B, H, T, S, seed=2)]
        found = model.predict(arrays, verbose=0)
        close(found, numpy(layer(*arrays[:2], attention_bias=arrays[2])))
        assert np.abs(found - numpy(layer(*arrays[:2]))).max() > 1e-3


def test_a_bias_gets_its_gradient_and_none_where_it_is_masked():
    layer = Attention(H, K)
    query, value, bias = random(B, T, D), random(B, S, D, seed=1), random(B, H, T, S, seed=2)
    layer.build(query.shape, value.shape)
    (gradient,) = gradients(
        lambda bias: keras.ops.square(
            layer(query, value, attention_bias=bias, attention_mask=mask())
        ),
        [bias],
    )
    assert (gradient[~mask()] == 0).all() and np.abs(gradient[mask()]).max() > 1e-3


def test_a_bias_is_not_rounded_in_mixed_precision():
    layer = Attention(dtype="mixed_bfloat16")
    x = np.zeros((1, T, D), "float32")
    # In bfloat16 these are one number.
    bias = np.broadcast_to(1024 + 0.5 * np.arange(T), (T, T)).astype("float32")
    _, weights = layer(x, attention_bias=bias, return_attention_scores=True)
    powers = np.exp(0.5 * np.arange(T))
    close(numpy(weights)[0, 0, 0], powers / powers.sum(), 0.01)


@pytest.mark.parametrize("shape", [(5, 1), (2, 1, 1, 1), (1, 5, 1, 1), (2, 5, 1, 1), (2, 1, 5)])
def test_a_bias_of_any_shape_is_its_broadcast(shape):
    """Keras's `add` on TensorFlow takes one long axis for the features, whichever it is."""
    heads = [
        np.random.default_rng(i).normal(size=(2, 5, 5, 3)).astype("float32") for i in (1, 2, 3)
    ]
    bias = np.random.default_rng(4).normal(size=shape).astype("float32")
    full = bias if bias.ndim == 4 else bias[:, None] if bias.ndim == 3 else bias[None, None]
    given = {"normalization": "sigmoid"}
    expected = ops.attend(*heads, bias=np.broadcast_to(full, (2, 5, 5, 5)).copy(), **given)
    found = ops.attend(*heads, bias=full, **given)
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-5, atol=1e-6)
    layer = Attention(5, 3, normalization="sigmoid")
    x = heads[0][:, :, 0]
    expected = layer(x, attention_bias=np.broadcast_to(full, (2, 5, 5, 5)).copy())
    np.testing.assert_allclose(
        numpy(layer(x, attention_bias=bias)), numpy(expected), rtol=1e-5, atol=1e-6
    )
