"""Huge numbers, and what padding holds: results and gradients stay numbers."""

import keras
import numpy as np
import pytest

from keras_attention import ops, patterns
from keras_attention.spec import PositionBias
from tests import definition
from tests.gradients import gradients
from tests.kernels.small_problem import (
    EXPLICIT,
    LARGEST,
    MASKS,
    NARROW,
    B,
    H,
    K,
    S,
    T,
    V,
    allowed_with_empty_rows,
    arrays,
    arrays_float32,
    numpy,
    random,
    tensors,
)
from tests.problems import attend


def huge(dtype):
    """Query, key and value of ± the largest of what the tests try."""
    return [
        np.where(random(*shape, seed=seed) < 0, -1.0, 1.0) * LARGEST[dtype]
        for seed, shape in ((21, (B, T, H, K)), (22, (B, S, H, K)), (23, (B, S, H, V)))
    ]


@pytest.mark.parametrize("kind", ["none", "causal and explicit", "rows with no key"])
@pytest.mark.parametrize("score", ["dot", "scaled_dot", "cosine"])
@pytest.mark.parametrize("dtype", NARROW)
def test_huge_inputs_give_finite_outputs(dtype, score, kind):
    given, mask = MASKS[kind]
    output, weights = ops.attend(
        *tensors(*huge(dtype), dtype=dtype), score=score, return_attention_scores=True, **given
    )
    assert np.isfinite(numpy(output)).all()
    has_keys = np.broadcast_to(mask, weights.shape).any(axis=-1)
    np.testing.assert_allclose(numpy(weights).sum(axis=-1), has_keys, rtol=0.02)
    assert np.abs(numpy(output)).max() > 0.1 * LARGEST[dtype]


@pytest.mark.parametrize("dtype", NARROW)
def test_huge_inputs_give_finite_outputs_with_sigmoid(dtype):
    query, key, _ = huge(dtype)
    output, weights = ops.attend(
        *tensors(query, key, arrays()[2], dtype=dtype),
        normalization="sigmoid",
        return_attention_scores=True,
    )
    assert np.isfinite(numpy(output)).all() and np.isfinite(numpy(weights)).all()
    assert numpy(weights).min() == 0 and numpy(weights).max() == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_huge_queries_and_keys_give_gradients_that_are_numbers(dtype):
    query, key, _ = huge(dtype)
    found = gradients(
        lambda *x: keras.ops.square(ops.attend(*x, mask=EXPLICIT)),
        tensors(query, key, arrays()[2], dtype=dtype),
    )
    # Where scores tie, the gradient is as large as the inputs, and may be inf in float16.
    assert not any(np.isnan(gradient).any() for gradient in found)
    assert np.abs(found[2]).max() > 0


def test_the_largest_score_wins_among_huge_ones():
    query, key, value = arrays()
    query[..., 0], key[..., 0] = 1e15, np.array([1.0, 3.0, 2.0, 4.0, 0.0])[None, :, None] * 1e14
    _, weights = ops.attend(*tensors(query, key, value), return_attention_scores=True)
    expected = np.broadcast_to(np.arange(S) == 3, weights.shape)
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-6)


@pytest.mark.parametrize("number", [-3.4e38, 2e38])
def test_a_huge_bias_lifts_no_mask_and_makes_no_nan(number):
    # Keras's own additive masks go down to the lowest number that there is.
    bias = np.zeros((B, H, T, S), "float32")
    mask = allowed_with_empty_rows()
    bias[0, ..., 2:] = number
    bias[1] = number

    def attend(query, key, value):
        return ops.attend(query, key, value, bias=bias, mask=mask, return_attention_scores=True)

    output, weights = attend(*tensors(*arrays()))
    expected, expected_weights = definition.attend(*arrays(), bias=bias, mask=mask)
    close = {"rtol": 1e-5, "atol": 1e-5}
    if number < 0:  # Above zero the scores drown in the bias, and their order with them.
        np.testing.assert_allclose(numpy(output), expected, **close)
        np.testing.assert_allclose(numpy(weights), expected_weights, **close)
    np.testing.assert_array_equal(numpy(weights)[~mask], 0.0)
    np.testing.assert_allclose(numpy(weights).sum(axis=-1), mask.any(axis=-1), **close)
    for gradient in gradients(lambda *x: keras.ops.square(attend(*x)[0]), arrays_float32()):
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[1], 0.0)


@pytest.mark.parametrize("kernel", ["reference", "blockwise"])
@pytest.mark.parametrize("by_distance", [False, True])
def test_an_infinite_position_bias_is_a_mask_and_makes_no_nan(by_distance, kernel):
    def function(i, j, table):
        return keras.ops.take(table, keras.ops.clip(j - i, -3, 3) + 3)[None]

    def answers(**given):
        def squares(*inputs):
            return keras.ops.square(attend(*inputs, kernel=kernel, **given).output)

        return [numpy(squares(*tensors(*arrays()))), *gradients(squares, arrays_float32())]

    def biased(table):
        return answers(bias=PositionBias(function, tensors(table.astype("float32")), by_distance))

    of_future = biased(np.where(np.arange(7) > 3, -np.inf, 0.0))
    for found, expected in zip(of_future, answers(pattern=patterns.Causal()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for found in biased(np.full(7, -np.inf)):
        assert np.isfinite(found).all()
