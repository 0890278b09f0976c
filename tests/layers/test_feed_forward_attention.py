"""Feed-forward attention of Raffel & Ellis 2015 against its equations, in loops."""

import math

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests import definition
from tests.arrays import numpy
from tests.gradients import weight_gradients

B, S, D, U = 3, 5, 4, 6


X = np.random.default_rng(0).normal(size=(B, S, D)).astype("float32")
KEPT = np.arange(S) < np.array([[S], [2], [0]])


def by_definition(x, kept, weights, units, activation):
    """Equations 5 to 7, one position at a time; weights are in the order of the layer."""
    output = np.zeros((len(x), x.shape[-1]))
    for b in range(len(x)):
        real = [s for s in range(x.shape[1]) if kept[b, s]]
        if not real:
            continue
        scores = []
        for s in real:
            if units is None:
                scores.append(activation(x[b, s] @ weights[0].ravel() + weights[1].ravel()[0]))
            else:
                hidden = x[b, s] @ weights[0].reshape(D, units) + weights[1].ravel()
                scores.append(
                    sum(activation(h) * v for h, v in zip(hidden, weights[2].ravel(), strict=True))
                )
        for s, weight in zip(real, definition.normalize(scores), strict=True):
            output[b] += weight * x[b, s]
    return output


@pytest.mark.parametrize("units", [None, U])
@pytest.mark.parametrize("activation", ["tanh", "linear"])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_its_equation(units, activation, masked):
    layer = ka.FeedForwardAttention(units, activation)
    layer.build(X.shape)
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    weights = [numpy(w).astype("float64") for w in layer.weights]
    kept = KEPT if masked else np.ones((B, S), bool)
    function = math.tanh if activation == "tanh" else float
    expected = by_definition(X.astype("float64"), kept, weights, units, function)
    found = layer(X, mask=KEPT) if masked else layer(X)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-4, atol=1e-5)


def test_it_owns_no_query_and_each_of_its_weights_learns():
    layer = ka.FeedForwardAttention(U)
    layer.build(X.shape)
    assert sorted(w.name for w in layer.weights) == ["bias", "kernel", "v"]
    found, _ = weight_gradients(layer, lambda: keras.ops.square(layer(X)))
    assert all(np.abs(gradient).max() > 0 for gradient in found)


def test_a_sequence_of_nothing_gives_zeros():
    layer = ka.FeedForwardAttention()
    layer.build((None, None, D))
    np.testing.assert_array_equal(numpy(layer(X[:, :0])), np.zeros((B, D)))
