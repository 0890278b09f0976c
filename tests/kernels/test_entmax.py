"""Entmax of any α, sparsemax and top-k, against searches for their thresholds."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import normalizations
from keras_attention.kernels.entmax import entmax, entmax15, sparsemax
from tests import definition
from tests.arrays import close, numpy, random, wide
from tests.gradients import gradients

ALPHAS = [1.01, 1.2, 1.5, 1.8, 2.0]
in_float64 = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX has float64 only where its x64 mode is on"
)


def of(alpha):
    """The functions for an α: that of all, and that of 1.5 or 2."""
    found = [lambda scores, mask=None: entmax(scores, alpha, mask)]
    return [*found, *{1.5: [entmax15], 2.0: [sparsemax]}.get(alpha, [])]


def weights_of(function, scores, *mask):
    return numpy(function(*map(keras.ops.convert_to_tensor, (scores, *mask))))


def expected_of(scores, alpha):
    scores = np.asarray(scores, "float64")
    if alpha == 2:
        return np.apply_along_axis(definition.sparsemax, -1, scores)
    return np.asarray(np.apply_along_axis(definition.entmax, -1, scores, alpha))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_are_those_of_the_definition(alpha):
    for function in of(alpha):
        exact = function is sparsemax
        for size, spread in ((1, 1.0), (2, 1.0), (7, 0.01), (300, 1.0), (300, 20.0)):
            scores = spread * random(2, 3, size)
            found = weights_of(function, scores)
            error = {"rtol": 1e-5, "atol": 1e-6} if exact else {"rtol": 2e-4, "atol": 2e-5}
            np.testing.assert_allclose(found, expected_of(scores, alpha), **error)
            np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6 if exact else 3e-5)
            assert (found >= 0).all()
            if alpha > 1.4 and spread == 20:
                assert (found == 0).mean() > 0.9


@in_float64
def test_keys_next_to_the_threshold():
    scores = np.array([[0.0, -1.9999], [0.0, -1.99999], [0.0, -2.1]])
    np.testing.assert_allclose(wide(entmax15(keras.ops.array(scores))).sum(-1), 1, atol=1e-13)
    assert weights_of(sparsemax, np.array([2.0, 1.0])).tolist() == [1, 0]


@pytest.mark.parametrize("shape", ["even", "power", "root", "logarithm"])
def test_many_keys_reach_the_threshold(shape):
    # Where Newton's method starts far from it, or the support is large.
    n = np.arange(8192.0)
    scores = {"even": -n / 1700, "power": -(0.5**n), "root": -np.sqrt(n) / 50}
    scores = scores.get(shape, np.log1p(n)).astype("float32")[None]
    for alpha in (1.5, 1.9, 2.0):
        for function in of(alpha):
            total = weights_of(function, scores).sum(dtype="float64")
            np.testing.assert_allclose(total, 1, atol=2e-4)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.9, 2.0])
def test_gradients_are_those_of_the_definition(alpha):
    scores, direction = random(3, 6, seed=1), random(3, 6, seed=2)

    def expected(scores, alpha):
        return (expected_of(scores, float(np.ravel(alpha)[0])) * direction).sum()

    of_scores, of_alpha = definition.gradients(expected, [scores, np.array([alpha])])
    for function in of(alpha)[1:]:
        (found,) = gradients(lambda x, f=function: keras.ops.multiply(f(x), direction), [scores])
        np.testing.assert_allclose(found, of_scores, rtol=1e-3, atol=1e-4)
    if alpha < 2:
        found, found_alpha = gradients(
            lambda x, alpha: keras.ops.multiply(entmax(x, alpha), direction),
            [scores, np.array([alpha], "float32")],
        )
        np.testing.assert_allclose(found, of_scores, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found_alpha, of_alpha, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_gradient_of_sparsemax_is_exact_among_equal_scores(size):
    # Proposition 2: that of the support's own share, less the mean over the support.
    scores = np.concatenate([np.full((3, size), 0.25), np.full((3, 2), -3.0)], axis=-1, dtype="f4")
    direction = random(3, size + 2, seed=5)
    (found,) = gradients(lambda x: keras.ops.multiply(sparsemax(x), direction), [scores])
    expected = np.zeros_like(direction)
    expected[:, :size] = direction[:, :size] - direction[:, :size].mean(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_masks_and_huge_scores_give_numbers(alpha):
    mask = np.arange(5) < np.array([[5], [2], [0]])
    scores = np.array([[1e38, -1e38, 9e37, 0, 1e38], [1, 2, 50, 50, 50], [1] * 5], "float32")
    for function in of(alpha):
        found = weights_of(function, scores, mask)
        np.testing.assert_allclose(found[0], [0.5, 0, 0, 0, 0.5], atol=1e-5)
        expected = expected_of(scores[1, :2], alpha)
        np.testing.assert_allclose(found[1, :2], expected, rtol=1e-4, atol=1e-6)
        assert not found[1, 2:].any()
        lowered = np.where(mask, scores, np.float32(-1.5e38))
        np.testing.assert_array_equal(weights_of(function, lowered), found)
        (slope,) = gradients(
            lambda x, f=function: keras.ops.multiply(f(x, keras.ops.array(mask)), np.arange(5.0)),
            [scores],
        )
        assert np.isfinite(slope).all() and not slope[1, 2:].any()


# Top-k


def test_top_k_keeps_the_largest_and_all_that_equal_the_last():
    scores = np.array([[3, 1, 2, 0], [1, 1, 1, 0], [2, 1, 1, 0]], "float32")
    found = weights_of(lambda x: normalizations.TopK(2).normalize(x, None), scores)
    kept = [[0, 2], [0, 1, 2], [0, 1, 2]]
    for row, (weights, at) in enumerate(zip(found, kept, strict=True)):
        close(weights[at], definition.softmax(scores[row, at]))
        assert not np.delete(weights, at).any()
    (slope,) = gradients(lambda x: normalizations.TopK(2).normalize(x, None)[0, 0], [scores])
    share = np.e / (np.e + 1) ** 2
    close(slope[0], np.array([share, 0, -share, 0]))


def test_top_k_of_a_length_that_is_unknown_until_run_time_and_may_be_below_k():
    layer, x = ka.SelfAttention(2, 4, normalization=normalizations.TopK(3)), random(2, 6, 8)
    tokens = keras.Input((None, 8))
    model = keras.Model(tokens, layer(tokens))
    for length in (6, 2):
        found = model.predict_on_batch(x[:, :length])
        np.testing.assert_allclose(found, numpy(layer(x[:, :length])), rtol=1e-4, atol=1e-5)
