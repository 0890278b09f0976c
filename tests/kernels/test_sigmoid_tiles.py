"""Sigmoid in tiles: the result of the reference, and its gradients, without storing all scores."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import kernels, ops, patterns, positions
from keras_attention.spec import AttentionSpec, ElementwiseNormalization, Positions
from tests import problems
from tests.arrays import numpy, random
from tests.gradients import gradients

B, T, S, H, G, K, V = 2, 7, 9, 4, 2, 4, 3
QUERY, KEY, VALUE = random(B, T, H, K, seed=1), random(B, S, G, K, seed=2), random(B, S, G, V)
BIAS = random(1, H, T, S, seed=3)
# Padding, with a row in which a query has no key.
MASK = (np.arange(S) < np.array([[S], [5]]))[:, None, None] & (np.arange(T) != 1)[:, None]
SEGMENTS = [np.arange(n) // 4 * np.ones((B, 1), int) for n in (T, S)]
TABLE = positions.RelativeBias(8, 6)
TABLE.build(QUERY.shape, KEY.shape)
CASES = {
    "plain": {},
    "mask": {"mask": MASK},
    "causal, bias": {"pattern": "causal", "bias": -2.0 * np.ones((1, 1, 1, 1), "float32")},
    "window, cap": {"pattern": patterns.SlidingWindow(2, 1), "logit_soft_cap": 2.0},
    "alibi, segments": {"position": "alibi", "segment_ids": SEGMENTS, "mask": MASK},
    "relative bias": {"position": TABLE, "bias": BIAS},
    "union": {"pattern": patterns.SlidingWindow(1, 0) | patterns.Prefix(2)},
}


def attend(query, key, value, kernel, **arguments):
    return ops.attend(query, key, value, normalization="sigmoid", kernel=kernel, **arguments)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tiles", [(3, 4), (16, 16)], ids=["tiles", "one tile"])
def test_tiles_are_the_reference_with_gradients(case, tiles):
    found, expected = [], []
    with problems.blocks_of(*tiles):
        for kernel, into in (("blockwise", found), ("reference", expected)):

            def function(*arrays, kernel=kernel):
                return keras.ops.sin(attend(*arrays, kernel, **CASES[case]))

            into.append(numpy(attend(QUERY, KEY, VALUE, kernel, **CASES[case])))
            into.extend(gradients(function, [QUERY, KEY, VALUE]))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    if "mask" in CASES[case]:
        assert not found[0][:, 1].any() and not found[1][:, 1].any()


def test_weights_that_are_dropped_are_dropped_in_the_gradient():
    def function(value, query):
        with problems.blocks_of(3, 4):
            return attend(query, KEY, value, "blockwise", dropout=0.5, seed=7)

    output = numpy(function(VALUE, QUERY))
    # The output is linear in the values, and so its gradient gives it back.
    upstream = random(*output.shape, seed=8)
    of_value, of_query = gradients(
        lambda v, q: keras.ops.multiply(function(v, q), upstream), [VALUE, QUERY]
    )
    np.testing.assert_allclose(np.sum(of_value * VALUE), np.sum(output * upstream), rtol=1e-4)
    step, eps = random(*QUERY.shape, seed=9), 1e-2
    ends = [np.sum(numpy(function(VALUE, QUERY + s * eps * step)) * upstream) for s in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * eps)
    np.testing.assert_allclose(np.sum(of_query * step), slope, rtol=1e-2, atol=1e-2)
    assert np.abs(output - numpy(attend(QUERY, KEY, VALUE, "reference"))).max() > 0.1


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 0.05), ("float16", 0.01)])
def test_half_precision_is_close_to_float32(dtype, tolerance):
    arrays = [keras.ops.cast(array, dtype) for array in (QUERY, KEY, VALUE)]
    with problems.blocks_of(3, 4):
        found = attend(*arrays, "blockwise", mask=MASK, position="alibi")
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    expected = attend(QUERY, KEY, VALUE, "reference", mask=MASK, position="alibi")
    found = numpy(keras.ops.cast(found, "float32"))
    np.testing.assert_allclose(found, numpy(expected), atol=tolerance)
    assert not found[:, 1].any()


def test_a_window_of_a_long_sequence_computes_only_what_it_sees():
    x = random(1, 600, 2, K)
    given = {"normalization": "sigmoid", "pattern": patterns.SlidingWindow(8, 0)}
    assert ops.explain(x, x, x, **given).startswith("banded")
    found, expected = (
        numpy(ops.attend(x, x, x, kernel=kernel, **given)) for kernel in ("banded", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_layer_with_padding_uses_tiles_and_keeps_the_bias_of_a_query_without_keys_out():
    layer = ka.MultiHeadAttention(2, 4, normalization="sigmoid")
    x = random(2, 5, 8)
    layer.build(x.shape, x.shape)
    mask = np.array([[True] * 3 + [False] * 2, [False] * 5])
    with problems.blocks_of(2, 2):
        found = numpy(layer(x, value_mask=mask))
    expected, _ = layer(x, value_mask=mask, return_attention_scores=True)
    np.testing.assert_allclose(found, numpy(expected), rtol=1e-4, atol=1e-5)
    assert not found[1].any()


def test_a_normalization_may_be_any_function_of_one_score():
    squared = ElementwiseNormalization(
        lambda scores: keras.ops.square(keras.ops.relu(scores)),
        lambda weights: 2 * keras.ops.sqrt(weights),
    )
    arrays = [keras.ops.array(x) for x in (QUERY, KEY, VALUE)]
    spec = AttentionSpec(normalization=squared, positions=Positions.of_heads(*arrays[:2]))
    with problems.blocks_of(3, 4):
        found, expected = (
            kernels.run(spec, *arrays, kernel=kernel).output
            for kernel in ("blockwise", "reference")
        )
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=1e-4, atol=1e-4)
