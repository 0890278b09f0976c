"""`FeedForward`: its equations, with the layer's own weights, in NumPy."""

import keras
import numpy as np
import pytest

from keras_attention import FeedForward
from tests.arrays import numpy, random

B, T, D, HIDDEN = 3, 5, 8, 16


X = random(B, T, D)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def made(*args, x=X, **kwargs):
    """A layer with random weights, biases included, and these weights by name."""
    layer = FeedForward(HIDDEN, *args, kernel_initializer="zeros", **kwargs)
    layer.build(x.shape)
    layer.set_weights(
        [
            old if "seed" in weight.path else random(*weight.shape, seed=seed) / 2
            for seed, (weight, old) in enumerate(
                zip(layer.weights, layer.get_weights(), strict=True)
            )
        ]
    )
    named = {"/".join(w.path.split("/")[-2:]): numpy(w).astype("float64") for w in layer.weights}
    return layer, named


def dense(x, weights, name):
    return x @ weights[f"{name}/kernel"] + weights.get(f"{name}/bias", 0.0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_output_is_the_equation(activation, gated, use_bias):
    layer, weights = made(activation, gated=gated, use_bias=use_bias)
    act = ACTIVATIONS[activation]
    if gated:
        hidden = act(dense(X, weights, "gate")) * dense(X, weights, "intermediate")
    else:
        hidden = act(dense(X, weights, "intermediate"))
    expected = dense(hidden, weights, "output")
    np.testing.assert_allclose(numpy(layer(X)), expected, rtol=1e-4, atol=1e-5)
    assert len(weights) == (2 + gated) * (1 + use_bias)


def test_output_may_have_features_of_its_own():
    layer, weights = made("tanh", output_dim=3)
    expected = dense(np.tanh(dense(X, weights, "intermediate")), weights, "output")
    assert expected.shape == (B, T, 3)
    np.testing.assert_allclose(numpy(layer(X)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(B, D), (2, B, T, D)])
def test_inputs_may_have_any_number_of_axes(shape):
    x = random(*shape)
    layer, weights = made(x=x)
    expected = dense(np.maximum(dense(x, weights, "intermediate"), 0), weights, "output")
    np.testing.assert_allclose(numpy(layer(x)), expected, rtol=1e-4, atol=1e-5)
    assert layer.compute_output_shape(shape) == shape


def test_dropout_is_before_the_second_projection():
    """With the identity for that one, the output shows what was dropped."""
    _, weights = made("relu")
    layer = FeedForward(HIDDEN, dropout=0.5, output_dim=HIDDEN, kernel_initializer="zeros", seed=1)
    layer.build(X.shape)
    kernel = weights["intermediate/kernel"]
    values = [kernel, np.ones(HIDDEN) * 9, np.eye(HIDDEN), np.zeros(HIDDEN)]
    rest = layer.get_weights()[4:]
    layer.set_weights([*values, *rest])
    hidden = X @ kernel + 9
    output = numpy(layer(X, training=True))
    kept = output != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(output[kept], 2 * hidden[kept], rtol=1e-4)


def test_gate_and_intermediate_start_apart():
    layer = FeedForward(HIDDEN, gated=True, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build(X.shape)
    kernels = [numpy(w) for w in layer.trainable_weights if w.shape == (D, HIDDEN)]
    assert len(kernels) == 2
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
