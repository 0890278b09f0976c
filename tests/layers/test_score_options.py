"""Soft caps, sinks, and biases of a call."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, ops
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
