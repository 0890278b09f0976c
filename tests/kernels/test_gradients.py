"""Gradients of kernels, against those of the definition of tests/definition.py."""

import keras
import numpy as np
import pytest

from keras_attention import ops
from tests import definition
from tests.gradients import gradients
from tests.kernels.small_problem import (
    EXPLICIT,
    MASKS,
    B,
    H,
    S,
    T,
    V,
    allowed_with_empty_rows,
    arrays,
    numpy,
    random,
    rounded,
    tensors,
)


def compare_gradients(given, defined, names=("query", "key", "value", "bias")):
    """Gradients of one random sum of outputs and scores, here and by differences."""
    inputs = rounded(*arrays(), random(B, H, T, S, seed=18), dtype="float32")
    of_output, of_weights = random(B, T, H, V, seed=19), random(B, H, T, S, seed=20)
    cotangents = tensors(of_output, of_weights)

    def ours(query, key, value, bias):
        answers = ops.attend(query, key, value, bias=bias, return_attention_scores=True, **given)
        return [a * cotangent for a, cotangent in zip(answers, cotangents, strict=True)]

    def theirs(query, key, value, bias):
        output, weights = definition.attend(query, key, value, bias=bias, **defined)
        return (output * of_output).sum() + (weights * of_weights).sum()

    found = gradients(ours, [array.astype("float32") for array in inputs])
    expected = definition.gradients(theirs, inputs)
    for name, gradient, correct in zip(names, found, expected, strict=True):
        assert np.abs(correct).max() > 0.01
        np.testing.assert_allclose(gradient, correct, rtol=2e-4, atol=2e-5, err_msg=name)
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize("kind", ["none", "padding", "(B, H, T, S)", "causal and explicit"])
def test_gradients_are_those_of_the_definition_under_every_mask(kind):
    given, mask = MASKS[kind]
    compare_gradients(given, {"mask": mask})


@pytest.mark.parametrize("score, normalization", [("dot", "sigmoid"), ("cosine", "softmax")])
def test_gradients_are_those_of_the_definition_for_every_score(score, normalization):
    slots = {"score": score, "normalization": normalization}
    compare_gradients({"mask": EXPLICIT, **slots}, {"mask": EXPLICIT[:, None], **slots})


@pytest.mark.parametrize("normalization", ["softmax", "sigmoid"])
def test_a_query_without_keys_has_zeros_and_gradients_of_zero(normalization):
    mask = allowed_with_empty_rows()
    slots = {"mask": mask, "normalization": normalization}
    output, weights = ops.attend(*tensors(*arrays()), return_attention_scores=True, **slots)
    empty = ~mask.any(axis=-1)
    np.testing.assert_array_equal(numpy(weights)[empty], 0.0)
    np.testing.assert_array_equal(numpy(output)[empty.transpose(0, 2, 1)], 0.0)
    found = compare_gradients(slots, slots)
    np.testing.assert_array_equal(found["query"][empty.transpose(0, 2, 1)], 0.0)
    np.testing.assert_array_equal(found["bias"][~mask], 0.0)
    for name in ("key", "value"):
        np.testing.assert_array_equal(found[name][1], 0.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_sequence_without_keys_has_zeros_in_every_dtype(dtype):
    mask = allowed_with_empty_rows()

    def total(*inputs):
        output = ops.attend(*inputs, mask=mask)
        return keras.ops.square(keras.ops.cast(output, "float32"))

    output = ops.attend(*tensors(*arrays(), dtype=dtype), mask=mask)
    np.testing.assert_array_equal(numpy(output)[1], 0.0)
    assert np.abs(numpy(output)[0]).min(axis=-1).max() > 0
    for gradient in gradients(total, tensors(*arrays(), dtype=dtype)):
        np.testing.assert_array_equal(gradient[1], 0.0)
        assert np.abs(gradient[0]).max() > 0


def test_cosine_of_a_vector_of_zeros_is_zero_with_a_finite_gradient():
    query, key, value = arrays()
    query[0, 1] = 0.0
    _, weights = ops.attend(
        *tensors(query, key, value), score="cosine", return_attention_scores=True
    )
    np.testing.assert_allclose(numpy(weights)[0, :, 1], 1 / S, rtol=1e-6)
    found = gradients(
        lambda *x: keras.ops.square(ops.attend(*x, score="cosine")), tensors(query, key, value)
    )
    assert all(np.isfinite(gradient).all() for gradient in found)
