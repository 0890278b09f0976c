"""Entmax of any α, and top-k: against searches for their thresholds; gradients, masks, extremes."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import normalizations, patterns
from keras_attention.kernels.entmax import entmax, entmax15
from tests import definition
from tests.arrays import numpy, random, wide
from tests.gradients import gradients

NUMBERS = np.arange(5, dtype="float32")
ALPHAS = [1.01, 1.2, 1.5, 1.8, 2.0]


def of(alpha):
    """The functions for an α: that of all, and that of 1.5."""
    found = [lambda scores, mask=None: entmax(scores, alpha, mask)]
    return [*found, entmax15] if alpha == 1.5 else found


def expected_of(scores, alpha):
    rows = np.apply_along_axis(definition.entmax, -1, scores.astype("float64"), alpha)
    return np.asarray(rows)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_are_those_of_the_definition(alpha):
    for function in of(alpha):
        for size, spread in ((1, 1.0), (2, 1.0), (7, 0.01), (300, 1.0), (300, 20.0)):
            scores = spread * random(2, 3, size)
            found = numpy(function(keras.ops.array(scores)))
            np.testing.assert_allclose(found, expected_of(scores, alpha), rtol=2e-4, atol=2e-5)
            np.testing.assert_allclose(found.sum(-1), 1, rtol=3e-5)
            if alpha > 1.4 and spread == 20:
                assert (found == 0).mean() > 0.9


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 by default")
def test_a_key_next_to_the_threshold_in_float64():
    scores = np.array([[0.0, -1.9999], [0.0, -1.99999], [0.0, -2.1]])
    found = wide(entmax15(keras.ops.array(scores, dtype="float64")))
    np.testing.assert_allclose(found.sum(-1), 1, rtol=0, atol=1e-13)


def test_the_ends_are_softmax_and_sparsemax():
    scores = keras.ops.array(2 * random(2, 9))
    near = numpy(entmax(scores, 1.01))
    np.testing.assert_allclose(near, numpy(keras.ops.softmax(scores)), atol=1e-2)
    far = numpy(normalizations.Sparsemax().normalize(scores, None))
    np.testing.assert_allclose(numpy(entmax(scores, 2.0)), far, atol=1e-5)
    np.testing.assert_array_equal(numpy(normalizations.Entmax(2).normalize(scores, None)), far)


@pytest.mark.parametrize("shape", ["even", "power", "root", "logarithm"])
def test_many_keys_reach_the_threshold(shape):
    # Where Newton's method starts far from it, or the support is large.
    n = np.arange(8192.0)
    scores = {"even": -n / 1700, "power": -(0.5**n), "root": -np.sqrt(n) / 50, "logarithm": 0 * n}
    scores = (scores[shape] if shape != "logarithm" else np.log1p(n)).astype("float32")[None]
    for alpha in (1.5, 1.9, 2.0):
        for function in of(alpha):
            total = numpy(function(keras.ops.array(scores))).sum(dtype="float64")
            np.testing.assert_allclose(total, 1, atol=2e-4)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.9])
def test_gradients_are_those_of_the_definition(alpha):
    scores, direction = random(3, 6, seed=1), random(3, 6, seed=2)

    def expected(scores, alpha):
        return (expected_of(scores, float(np.ravel(alpha)[0])) * direction).sum()

    of_scores, of_alpha = definition.gradients(expected, [scores, np.array([alpha])])
    for function in of(alpha)[1:]:
        (found,) = gradients(lambda x, f=function: keras.ops.multiply(f(x), direction), [scores])
        np.testing.assert_allclose(found, of_scores, rtol=1e-3, atol=1e-4)
    found, found_alpha = gradients(
        lambda x, alpha: keras.ops.multiply(entmax(x, alpha), direction),
        [scores, np.array([alpha], "float32")],
    )
    np.testing.assert_allclose(found, of_scores, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found_alpha, of_alpha, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("alpha", [1.3, 1.5])
def test_masks_and_huge_scores_give_numbers(alpha):
    mask = np.arange(5) < np.array([[5], [2], [0]])
    scores = np.array([[1e38, -1e38, 9e37, 0, 1e38], [1, 2, 50, 50, 50], [1] * 5], "float32")
    for function in of(alpha):
        found = numpy(function(keras.ops.array(scores), keras.ops.array(mask)))
        np.testing.assert_allclose(found[0], [0.5, 0, 0, 0, 0.5], atol=1e-5)
        np.testing.assert_allclose(
            found[1, :2], expected_of(scores[1, :2], alpha), rtol=1e-4, atol=1e-6
        )
        assert not found[1, 2:].any()
        (slope,) = gradients(
            lambda x, f=function: keras.ops.multiply(f(x, keras.ops.array(mask)), NUMBERS), [scores]
        )
        assert np.isfinite(slope).all() and not slope[1, 2:].any()


# Top-k


def test_top_k_keeps_the_largest_and_all_that_equal_the_last():
    scores = keras.ops.array([[3.0, 1.0, 2.0, 0.0], [1.0, 1.0, 1.0, 0.0], [2.0, 1.0, 1.0, 0.0]])
    found = numpy(normalizations.TopK(2).normalize(scores, None))
    e = np.e
    expected = [
        [e / (e + 1), 0, 1 / (e + 1), 0],
        [1 / 3, 1 / 3, 1 / 3, 0],
        [e / (e + 2), 1 / (e + 2), 1 / (e + 2), 0],
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    (slope,) = gradients(lambda x: normalizations.TopK(2).normalize(x, None)[0, 0], [numpy(scores)])
    share = e / (e + 1) ** 2
    np.testing.assert_allclose(slope[0], [share, 0, -share, 0], rtol=1e-5)


def test_top_k_of_few_visible_keys_is_softmax():
    layer = ka.SelfAttention(2, 4, causal=True, normalization=normalizations.TopK(3))
    x = random(2, 6, 8)
    _, weights = layer(x, return_attention_scores=True)
    weights = numpy(weights)
    assert ((weights > 0).sum(-1) == np.minimum(np.arange(6) + 1, 3)).all()
    plain = ka.SelfAttention(2, 4, pattern=patterns.Causal())
    plain.build(x.shape)
    plain.set_weights(layer.get_weights())
    expected = numpy(plain(x, return_attention_scores=True)[1])
    np.testing.assert_allclose(weights[:, :, :3], expected[:, :, :3], rtol=1e-5)
    # A length that is unknown until run time, and may be below k.
    tokens = keras.Input((None, 8))
    model = keras.Model(tokens, layer(tokens))
    for length in (6, 2):
        found = model.predict_on_batch(x[:, :length])
        np.testing.assert_allclose(found, numpy(layer(x))[:, :length], rtol=1e-4, atol=1e-5)
