"""Soft caps, sinks, and biases of a call."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, MultiHeadAttention, ops
from tests import definition
from tests.arrays import close, random, run
from tests.arrays import wide as numpy
from tests.gradients import gradients
from tests.layers.small_heads import B, D, H, K, S, T, arrays, attend, mask


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


# Biases of a call


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
