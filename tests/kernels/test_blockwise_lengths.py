"""The blockwise kernel, where a length is zero or is not known when the graph is built."""

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import patterns
from tests.kernels.blockwise_problems import WINDOW
from tests.problems import (
    B,
    G,
    H,
    V,
    answers,
    attended,
    inputs,
    on_tensorflow,
)


@pytest.mark.parametrize("groups", [H, G])
@pytest.mark.parametrize("queries, keys", [(0, 5), (5, 0), (0, 0)])
def test_lengths_of_zero(queries, keys, groups):
    arrays = inputs(queries=queries, keys=keys, groups=groups)
    for rest in ({}, {"pattern": WINDOW}, {"mask": np.ones((B, 1, 1, keys), bool)}):
        found = answers("auto", arrays, rest)
        assert found["output"].shape == (B, queries, H, V)
        for name, array in found.items():
            assert array.shape == arrays.get(name, array).shape
            np.testing.assert_array_equal(array, 0.0)
    with_keys = attended("auto", arrays, {"pattern": WINDOW}).has_keys
    assert not keras.ops.convert_to_numpy(with_keys).any()


@on_tensorflow
def test_a_batch_of_no_rows_among_unknown_sizes():
    import tensorflow as tf

    layer = keras_attention.SelfAttention(2, 4, pattern=patterns.SlidingWindow(3, 0))
    layer.build((None, None, 8))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, None, 8))])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
        return output, tape.gradient(output, x)

    for length in (6, 1):
        output, gradient = step(tf.zeros((0, length, 8)))
        assert output.shape == gradient.shape == (0, length, 8)
