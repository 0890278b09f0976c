"""Sparsemax, against a search for its threshold, and the laws that it obeys."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_attention.kernels.entmax import sparsemax
from tests import definition
from tests.arrays import numpy, random
from tests.gradients import gradients

MASKED = np.float32(-1.5e38)


def weights_of(scores, mask=None):
    return numpy(sparsemax(keras.ops.convert_to_tensor(scores), mask))


def by_definition(scores):
    return np.apply_along_axis(definition.sparsemax, -1, scores.astype("float64"))


@pytest.mark.parametrize("spread", [0.01, 0.3, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_weights_are_those_of_the_definition(size, spread):
    scores = spread * random(2, 3, 4, size)
    weights = weights_of(scores)
    np.testing.assert_allclose(weights, by_definition(scores), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    assert (weights >= 0).all()


def test_a_score_exactly_one_below_the_only_one_gets_nothing():
    assert weights_of(np.array([2.0, 1.0], "float32")).tolist() == [1, 0]


# Masks and extremes


def test_masked_keys_get_exactly_nothing():
    scores, mask = random(3, 8, seed=1), np.random.default_rng(2).random((3, 8)) < 0.5
    mask[:, 0] = True
    for given_scores in (np.where(mask, scores, MASKED), np.where(mask, scores, np.float32(50))):
        weights = weights_of(given_scores, mask)
        assert (weights[~mask] == 0).all()
        for row, (allowed, found) in enumerate(zip(mask, weights, strict=True)):
            expected = by_definition(scores[row, allowed])
            np.testing.assert_allclose(found[allowed], expected, rtol=1e-5, atol=1e-6)
    lowered = np.where(mask, scores, MASKED)
    np.testing.assert_array_equal(weights_of(lowered), weights_of(lowered, mask))


def test_huge_scores_give_numbers_and_the_largest_wins():
    scores = np.array([[1e38, -1e38, 9e37, 0], [-1e38, -9e37, -1e38, -1e38]], "float32")
    assert weights_of(scores).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    (gradient,) = gradients(lambda x: keras.ops.multiply(sparsemax(x), random(2, 4)), [scores])
    np.testing.assert_array_equal(gradient, 0)


# Laws

SCORES = arrays.arrays(
    "float32",
    arrays.array_shapes(min_dims=1, max_dims=2, max_side=4),
    elements=st.floats(-4, 4, width=16),
)


@settings(max_examples=25, deadline=None)
@given(SCORES, st.integers(-1000, 1000), st.randoms(use_true_random=False))
def test_adding_to_all_scores_or_reordering_them_changes_nothing_else(scores, shift, dice):
    weights = weights_of(scores)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights_of(scores + np.float32(shift)), weights, atol=1e-3)
    order = dice.sample(range(scores.shape[-1]), scores.shape[-1])
    np.testing.assert_allclose(weights_of(scores[..., order]), weights[..., order], atol=1e-6)
    # Larger scores never get less.
    ranked = np.take_along_axis(weights, np.argsort(scores, axis=-1), -1)
    assert (np.diff(ranked, axis=-1) >= -1e-6).all()


# Gradients


def test_gradient_is_that_of_finite_differences():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")
    scores, direction = random(4, 7, seed=3).astype("float64"), random(4, 7, seed=4)
    direction = direction.astype("float64")
    (found,) = gradients(lambda x: keras.ops.multiply(sparsemax(x), direction), [scores])
    (expected,) = definition.gradients(lambda x: (by_definition(x) * direction).sum(), [scores])
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gradient_is_exact_among_equal_scores(size):
    # Proposition 2: that of the support's own share, less the mean over the support.
    scores = np.concatenate([np.full((3, size), 0.25), np.full((3, 2), -3.0)], axis=-1, dtype="f4")
    direction = random(3, size + 2, seed=5)
    (found,) = gradients(
        lambda x: keras.ops.multiply(sparsemax(x), direction), [scores.astype("float32")]
    )
    inside = direction[:, :size]
    expected = np.zeros_like(direction)
    expected[:, :size] = inside - inside.mean(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)
