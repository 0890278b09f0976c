"""Sigmoid, and any function of one score, in tiles: what dropout drops, and the gradient."""

import keras
import numpy as np

from keras_attention import kernels, ops
from keras_attention.spec import AttentionSpec, ElementwiseNormalization, Positions
from tests import problems
from tests.arrays import numpy, random
from tests.gradients import gradients

B, T, S, H, G, K, V = 2, 7, 9, 4, 2, 4, 3
QUERY, KEY, VALUE = random(B, T, H, K, seed=1), random(B, S, G, K, seed=2), random(B, S, G, V)


def attend(query, key, value, kernel, **arguments):
    return ops.attend(query, key, value, normalization="sigmoid", kernel=kernel, **arguments)


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
