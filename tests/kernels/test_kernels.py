"""Kernels and `ops.attend`, against the definition of tests/definition.py."""

import inspect
import re

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import ops, patterns
from keras_attention.spec import PositionBias
from tests import definition
from tests.compiled import compiled
from tests.kernels.small_problem import (
    CAUSAL,
    EXPLICIT,
    POSITIONS,
    ROUNDING,
    B,
    H,
    K,
    S,
    T,
    V,
    arrays,
    float64_or_skip,
    numpy,
    random,
    tensors,
)
from tests.problems import attend


@pytest.mark.parametrize("queries", [1, T])
@pytest.mark.parametrize("kernel", ["reference", "blockwise", "auto"])
def test_the_scale_is_as_precise_as_float64(kernel, queries):
    float64_or_skip("float64")
    # One over the root of 3 is no number of float32.
    query, key = (random(2, n, 1, 3, seed=n).astype("float64") for n in (queries, S))
    tensors = [keras.ops.convert_to_tensor(x) for x in (query, key, key)]
    found = ops.attend(*tensors, logit_soft_cap=1.1, kernel=kernel)
    expected, _ = definition.attend(query, key, key, soft_cap=1.1)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-12, atol=1e-12)


# Values


def test_a_mask_of_zeros_and_ones_is_a_boolean_one():
    expected = ops.attend(*tensors(*arrays()), mask=EXPLICIT)
    for dtype in ("float32", "int32"):
        output = ops.attend(*tensors(*arrays()), mask=EXPLICIT.astype(dtype))
        np.testing.assert_array_equal(numpy(output), numpy(expected))


def test_the_kernel_counts_positions_from_zero_and_calls_a_bias_with_them():
    query, key, value = tensors(*arrays())

    def slope(i, j):
        return -0.7 * keras.ops.cast(keras.ops.abs(i - j), "float32")

    attended = attend(query, key, value, bias=PositionBias(slope), pattern=patterns.Causal())
    expected, _ = definition.attend(
        *arrays(), score="dot", bias=-0.7 * abs(POSITIONS[0] - POSITIONS[1]), mask=CAUSAL
    )
    np.testing.assert_allclose(numpy(attended.output), expected, **ROUNDING["float32"])
    assert attended.weights is None
    assert numpy(attended.has_keys, "bool").all()


def test_what_attend_takes_is_documented():
    lists = re.findall(r"^ {8}(\w[\w, ]*):", ops.attend.__doc__, re.MULTILINE)
    assert set(inspect.signature(ops.attend).parameters) <= set(", ".join(lists).split(", "))


def test_one_key_takes_all_the_weight_without_a_warning(recwarn):
    query, key = np.ones((2, 3, 1, 4), "float32"), np.ones((2, 1, 1, 4), "float32")
    mask = np.array([True, False])[:, None, None, None]
    _, weights = ops.attend(query, key, key, mask=mask, return_attention_scores=True)
    expected = np.broadcast_to(mask, (2, 1, 3, 1)).astype("float32")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(weights), expected)
    assert not [warning for warning in recwarn if "softmax" in str(warning.message)]


@pytest.mark.parametrize("jit", [False, True])
def test_one_feature_of_huge_values_gives_no_nan(jit):
    """XLA takes such a product for a multiplication, and may do it twice, with two roundings."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, 5, 1, 1)).astype("float32") * 1e17 for _ in range(2))
    run = compiled if jit else (lambda function, *arrays: function(*arrays))
    output = run(lambda q, k: ops.attend(q, k, k), query, key)
    assert np.isfinite(keras.ops.convert_to_numpy(output)).all()


# Lengths that a graph does not know


# What users pass to `ops.attend`


def test_integers_are_computed_with_as_floats():
    query, key, _ = tensors(*arrays())
    value = np.arange(B * S * H * V, dtype="int32").reshape(B, S, H, V)
    found = ops.attend(query, key, value)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    expected = ops.attend(query, key, value.astype("float32"))
    np.testing.assert_array_equal(numpy(found), numpy(expected))
    layer = keras_attention.Attention()
    ids = value[:, :, 0]
    np.testing.assert_array_equal(numpy(layer(ids)), numpy(layer(ids.astype("float32"))))


def test_soft_caps_are_as_precise_as_float64():
    float64_or_skip("float64")
    inputs = [array.astype("float64") for array in arrays()]
    scores = np.einsum("bthk,bshk->bhts", *inputs[:2]) / np.sqrt(K)
    # A cap of 1.3 in float32 differs in the eighth digit.
    weights = np.exp(1.3 * np.tanh(scores / 1.3))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhts,bshv->bthv", weights, inputs[2])
    for kernel in ("reference", "blockwise"):
        given = map(keras.ops.convert_to_tensor, inputs)
        found = ops.attend(*given, logit_soft_cap=1.3, kernel=kernel)
        np.testing.assert_allclose(numpy(found), expected, rtol=1e-12)


def test_the_mask_of_a_problem_is_all_that_it_is_made_of():
    query, key, value = arrays()
    padding = np.arange(S) < S - 1
    segments = np.arange(T)[None] // 2 + np.zeros((B, 1), "int32"), np.arange(S)[None] // 2
    segments = tuple(np.broadcast_to(x, (B, x.shape[1])).astype("int32") for x in segments)
    found = ops.mask(
        query,
        key,
        value,
        mask=padding[None, None, None],
        pattern=patterns.Causal(),
        offset=1,
        segment_ids=segments,
    )
    i, j = np.arange(T)[:, None] + 1, np.arange(S)
    expected = padding & (j <= i) & ((i - 1) // 2 == j // 2)
    shape = np.broadcast_shapes(tuple(found.shape), (B, 1, T, S))
    np.testing.assert_array_equal(
        np.broadcast_to(numpy(found, "bool"), shape), np.broadcast_to(expected, shape)
    )
    assert ops.mask(query, key, value) is None
