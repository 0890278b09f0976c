"""`FeedForward`: its equations, with the layer's own weights, in NumPy."""

import keras
import numpy as np
import pytest

from keras_attention import FeedForward
from tests.arrays import numpy, random, wide

B, T, D, HIDDEN = 3, 5, 8, 16
X = random(B, T, D)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
}


def expected(layer, x, activation):
    """The equation, with random weights, biases included."""
    layer.build(x.shape)
    for seed, weight in enumerate(layer.trainable_weights):
        weight.assign(random(*weight.shape, seed=seed) / 2)
    w = {"/".join(w.path.split("/")[-2:]): wide(w) for w in layer.trainable_weights}
    assert len(w) == (2 + layer.gated) * (1 + layer.use_bias)

    def dense(x, name):
        return x @ w[f"{name}/kernel"] + w.get(f"{name}/bias", 0.0)

    hidden = ACTIVATIONS[activation](dense(x, "gate" if layer.gated else "intermediate"))
    return dense(hidden * dense(x, "intermediate") if layer.gated else hidden, "output")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_output_is_the_equation(activation):
    for options, shape in (
        ({"use_bias": False}, (B, T, D)),
        ({"gated": True}, (B, D)),
        ({"gated": True, "use_bias": False}, (2, B, T, D)),
        ({"output_dim": 3}, (B, T, D)),
    ):
        layer, x = FeedForward(HIDDEN, activation, **options), random(*shape)
        answer = expected(layer, x, activation)
        np.testing.assert_allclose(numpy(layer(x)), answer, rtol=1e-4, atol=1e-5)
        assert layer.compute_output_shape(shape) == answer.shape


def test_dropout_is_before_the_second_projection():
    """With the identity for that one, the output shows what was dropped."""
    layer = FeedForward(HIDDEN, dropout=0.5, output_dim=HIDDEN, seed=1)
    layer.build(X.shape)
    kernel = random(D, HIDDEN) / 2
    values = [kernel, np.ones(HIDDEN) * 9, np.eye(HIDDEN), np.zeros(HIDDEN)]
    layer.set_weights([*values, *layer.get_weights()[4:]])
    output = numpy(layer(X, training=True))
    kept = output != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(output[kept], 2 * (X @ kernel + 9)[kept], rtol=1e-4)


def test_gate_and_intermediate_start_apart():
    layer = FeedForward(HIDDEN, gated=True, kernel_initializer=keras.initializers.GlorotUniform())
    layer.build(X.shape)
    kernels = [numpy(w) for w in layer.trainable_weights if w.shape == (D, HIDDEN)]
    assert len(kernels) == 2
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
