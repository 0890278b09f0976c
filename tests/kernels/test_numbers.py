"""Numbers that kernels are given: huge ones, those of padding, integers, and what float64 has."""

import inspect
import re

import keras
import numpy as np
import pytest

from keras_attention import ops, patterns
from keras_attention.spec import PositionBias
from tests import definition
from tests.arrays import close, numpy, random
from tests.compiled import compiled
from tests.gradients import gradients
from tests.problems import attend, on_tensorflow

B, T, S, H, K, V = 2, 3, 5, 2, 4, 6
EXPLICIT = np.random.default_rng(2).random((B, T, S)) < 0.5
EXPLICIT[..., 0] = True
LARGEST = {"float32": 1e30, "bfloat16": 1e30, "float16": 6e4}


def with_empty_rows():
    """No key for a query of one sequence, none for a head's query, none for a whole sequence."""
    mask = np.random.default_rng(7).random((B, H, T, S)) < 0.6
    mask[..., 0] = True
    mask[0, :, 1] = mask[0, 1, 2] = mask[1] = False
    return mask


def arrays():
    """Query, key and value, large enough that softmax is far from uniform."""
    return [
        2 * random(B, T, H, K, seed=10),
        random(B, S, H, K, seed=11),
        random(B, S, H, V, seed=12),
    ]


def tensors(*arrays, dtype="float32"):
    return [keras.ops.cast(keras.ops.convert_to_tensor(array), dtype) for array in arrays]


@pytest.mark.parametrize("dtype", LARGEST)
def test_huge_inputs_give_numbers(dtype):
    largest = LARGEST[dtype]
    huge = [largest * np.where(array < 0, -1, 1) for array in arrays()]
    causal = np.tri(T, S, dtype=bool)
    for given, mask in (
        ({}, True),
        ({"pattern": "causal", "mask": EXPLICIT}, causal & EXPLICIT[:, None]),
        ({"mask": with_empty_rows()}, with_empty_rows()),
    ):
        for score in ("dot", "scaled_dot", "cosine"):
            given = {**given, "score": score, "return_attention_scores": True}
            output, weights = map(numpy, ops.attend(*tensors(*huge, dtype=dtype), **given))
            has_keys = np.broadcast_to(mask, weights.shape).any(axis=-1)
            np.testing.assert_allclose(weights.sum(-1, dtype="f4"), has_keys, rtol=0.02)
            assert np.isfinite(output).all() and np.abs(output).max() > 0.1 * largest
    some = tensors(*huge[:2], arrays()[2], dtype=dtype)
    output, weights = ops.attend(*some, normalization="sigmoid", return_attention_scores=True)
    assert np.isfinite(numpy(output)).all()
    assert {0, 1} <= set(np.unique(numpy(weights))) <= {0, 0.5, 1}
    found = gradients(lambda *x: keras.ops.square(ops.attend(*x, mask=EXPLICIT)), some)
    # Where scores tie, the gradient is as large as the inputs, and may be inf in float16.
    assert not any(np.isnan(gradient).any() for gradient in found)
    assert np.abs(found[2]).max() > 0


def test_the_largest_score_wins_among_huge_ones():
    query, key, value = arrays()
    query[..., 0], key[..., 0] = 1e15, np.array([1.0, 3.0, 2.0, 4.0, 0.0])[None, :, None] * 1e14
    _, weights = ops.attend(*tensors(query, key, value), return_attention_scores=True)
    close(numpy(weights), np.broadcast_to(np.arange(S) == 3, weights.shape), 1e-6)


@pytest.mark.parametrize("number", [-3.4e38, 2e38])
def test_a_huge_bias_lifts_no_mask_and_makes_no_nan(number):
    # Keras's own additive masks go down to the lowest number that there is.
    bias, mask = np.zeros((B, H, T, S), "float32"), with_empty_rows()
    bias[0, ..., 2:] = bias[1] = number

    def attend(query, key, value):
        return ops.attend(query, key, value, bias=bias, mask=mask, return_attention_scores=True)

    output, weights = map(numpy, attend(*tensors(*arrays())))
    if number < 0:  # Above zero the scores drown in the bias, and their order with them.
        expected, expected_weights = definition.attend(*arrays(), bias=bias, mask=mask)
        close(output, expected)
        close(weights, expected_weights)
    np.testing.assert_array_equal(weights[~mask], 0.0)
    close(weights.sum(axis=-1), mask.any(axis=-1))
    for gradient in gradients(lambda *x: keras.ops.square(attend(*x)[0]), arrays()):
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

        return [numpy(squares(*tensors(*arrays()))), *gradients(squares, arrays())]

    def biased(table):
        return answers(bias=PositionBias(function, tensors(table), by_distance))

    of_future = biased(np.where(np.arange(7) > 3, -np.inf, 0.0))
    for found, expected in zip(of_future, answers(pattern=patterns.Causal()), strict=True):
        close(found, expected)
    assert all(np.isfinite(found).all() for found in biased(np.full(7, -np.inf)))


@pytest.mark.parametrize("jit", [False, True])
def test_one_feature_of_huge_values_gives_no_nan(jit):
    """XLA takes such a product for a multiplication, and may do it twice, with two roundings."""
    query, key = (1e17 * random(2, 5, 1, 1, seed=n) for n in range(2))
    run = compiled if jit else (lambda function, *arrays: function(*arrays))
    assert np.isfinite(numpy(run(lambda q, k: ops.attend(q, k, k), query, key))).all()


@on_tensorflow
@pytest.mark.parametrize("kernel", ["single_query", "reference", "blockwise"])
def test_one_feature_in_a_graph_that_is_compiled_later(kernel):
    import tensorflow as tf

    arrays = tensors(1e17 * random(B, 1, H, 1), 1e17 * random(B, S, H, 1), random(B, S, H, V))

    def attend(*arrays):
        return ops.attend(*arrays, kernel=kernel)

    graph = tf.function(attend, autograph=False).get_concrete_function(*arrays)
    found = tf.function(lambda *x: graph(*x), autograph=False, jit_compile=True)(*arrays)
    np.testing.assert_allclose(found, attend(*arrays), atol=1e-6)


# Keys of one feature are no more numbers than scores, and always clipped.
@pytest.mark.parametrize("features", [K, 1])
@pytest.mark.parametrize("groups", [1, 4])
def test_one_query_clips_keys_where_that_makes_a_difference(groups, features):
    query, key = random(B, 1, 4, features), random(B, S, groups, features)
    value = random(B, S, groups, V)
    query[0, :, 1], key[1, 3], value[0, :, -1] = 3e38, 3e38, 3e38
    # Not clipped, its score would be infinite.
    query[1] = 5.0
    found, expected = (
        numpy(attend(query, key, value, kernel=name).output)
        for name in ("single_query", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    assert np.isfinite(found).all()


def test_one_query_of_each_row_that_is_mapped():
    """With keys small and huge, of which only the second are clipped."""
    query, key, value = random(3, 1, 1, 2, 8), random(3, 1, S, 2, 8), random(3, 1, S, 2, 8)
    key[1] *= 1e20

    def of_row(row):
        return ops.attend(*row, kernel="single_query")

    expected = [numpy(of_row(row)) for row in zip(query, key, value, strict=True)]
    found = numpy(keras.ops.vectorized_map(of_row, tuple(tensors(query, key, value))))
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-6)


def test_a_mask_of_zeros_and_ones_is_a_boolean_one():
    expected = ops.attend(*tensors(*arrays()), mask=EXPLICIT)
    for dtype in ("float32", "int32"):
        output = ops.attend(*tensors(*arrays()), mask=EXPLICIT.astype(dtype))
        np.testing.assert_array_equal(numpy(output), numpy(expected))


def test_integers_are_computed_with_as_floats():
    query, key, _ = tensors(*arrays())
    value = np.arange(B * S * H * V, dtype="int32").reshape(B, S, H, V)
    found = ops.attend(query, key, value)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    expected = ops.attend(query, key, value.astype("float32"))
    np.testing.assert_array_equal(numpy(found), numpy(expected))


def test_one_key_takes_all_the_weight_without_a_warning(recwarn):
    query, key = np.ones((2, 3, 1, 4), "float32"), np.ones((2, 1, 1, 4), "float32")
    mask = np.array([True, False])[:, None, None, None]
    _, weights = ops.attend(query, key, key, mask=mask, return_attention_scores=True)
    np.testing.assert_array_equal(numpy(weights), np.broadcast_to(mask, (2, 1, 3, 1)))
    assert not [warning for warning in recwarn if "softmax" in str(warning.message)]


def test_what_attend_takes_is_documented():
    lists = re.findall(r"^ {8}(\w[\w, ]*):", ops.attend.__doc__, re.MULTILINE)
    assert set(inspect.signature(ops.attend).parameters) <= set(", ".join(lists).split(", "))


def test_the_mask_of_a_problem_is_all_that_it_is_made_of():
    padding = np.arange(S) < S - 1
    segments = [np.tile(np.arange(n) // 2, (B, 1)).astype("int32") for n in (T, S)]
    given = {"mask": padding[None, None, None], "pattern": patterns.Causal(), "offset": 1}
    found = numpy(ops.mask(*arrays(), segment_ids=segments, **given))
    i, j = np.arange(T)[:, None] + 1, np.arange(S)
    expected = padding & (j <= i) & ((i - 1) // 2 == j // 2)
    np.testing.assert_array_equal(*np.broadcast_arrays(found, expected[None, None]))
    assert ops.mask(*arrays()) is None


# Attentions that are merged by their log-sum-exps


@pytest.mark.parametrize("kernel", ["reference", "auto"])
def test_merged_attentions_are_one_with_all_gradients(kernel):
    mask, sink, upstream = with_empty_rows(), random(H, seed=52), random(B, T, H, V, seed=53)

    def whole(query, key, value):
        return ops.attend(query, key, value, mask=mask, sink=sink, kernel=kernel)

    def merged(query, key, value):
        def part(start, stop):
            # The sink takes part once.
            given = {"mask": mask[..., start:stop], "sink": sink if start == 0 else None}
            key_value = key[:, start:stop], value[:, start:stop]
            return ops.attend(query, *key_value, **given, kernel=kernel, return_lse=True)

        return ops.merge([part(0, 1), part(1, 4), part(4, S)])[0]

    def answers(function):
        slopes = gradients(lambda *x: keras.ops.multiply(function(*x), upstream), arrays())
        return [numpy(function(*tensors(*arrays()))), *slopes]

    for one, other in zip(answers(merged), answers(whole), strict=True):
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
    close(numpy(more), numpy(lse) + np.log(2))
