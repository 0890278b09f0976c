"""Log-sum-exps, and attentions put together by them."""

import keras
import numpy as np
import pytest

from keras_attention import ops
from tests.gradients import gradients
from tests.kernels.small_problem import (
    B,
    H,
    K,
    S,
    T,
    V,
    allowed_with_empty_rows,
    arrays,
    numpy,
    random,
    tensors,
)


def defined_lse(query, key, mask, sink=None, bias=0.0):
    """ln Σ exp(score) in float64, over the keys that the mask allows."""
    scores = np.einsum("bthk,bshk->bhts", query, key).astype("float64") / np.sqrt(K) + bias
    scores = np.where(np.broadcast_to(mask, scores.shape), scores, -np.inf)
    if sink is not None:
        sinks = np.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    largest = np.maximum(scores.max(-1, keepdims=True), -1e30)
    with np.errstate(divide="ignore"):
        return (largest + np.log(np.exp(scores - largest).sum(-1, keepdims=True)))[..., 0]


def test_the_log_sum_exp_of_a_single_query():
    query, key, value = arrays()
    _, lse = ops.attend(query[:, :1], key, value, kernel="single_query", return_lse=True)
    expected = defined_lse(query[:, :1], key, np.ones((1, 1, 1, 1), bool))
    np.testing.assert_allclose(numpy(lse), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_merged_attentions_are_one_with_all_gradients(kernel):
    mask, sink = allowed_with_empty_rows(), random(H, seed=52)
    upstream = random(B, T, H, V, seed=53)

    def whole(query, key, value):
        return ops.attend(query, key, value, mask=mask, sink=sink, kernel=kernel)

    def merged(query, key, value):
        parts = []
        for start, stop in ((0, 1), (1, 4), (4, S)):
            piece = slice(start, stop)
            parts.append(
                ops.attend(
                    query,
                    key[:, piece],
                    value[:, piece],
                    mask=mask[..., piece],
                    # It takes part once.
                    sink=sink if start == 0 else None,
                    kernel=kernel,
                    return_lse=True,
                )
            )
        return ops.merge(parts)[0]

    found = [
        [
            numpy(function(*tensors(*arrays()))),
            *gradients(
                lambda *x, f=function: keras.ops.sum(keras.ops.multiply(f(*x), upstream)),
                list(arrays()),
            ),
        ]
        for function in (merged, whole)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_merging_keeps_the_dtype_and_takes_any_number_of_parts():
    query, key, value = tensors(*arrays(), dtype="float16")
    part = ops.attend(query, key, value, return_lse=True)
    output, lse = ops.merge([part])
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    assert keras.backend.standardize_dtype(lse.dtype) == "float32"
    np.testing.assert_array_equal(numpy(output), numpy(part[0]))
    # The same keys twice count twice, and change nothing but the sum.
    twice, more = ops.merge([part, part])
    np.testing.assert_allclose(numpy(twice), numpy(output), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(numpy(more), numpy(lse) + np.log(2), rtol=1e-5, atol=1e-5)
