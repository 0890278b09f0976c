"""The blockwise kernel, where a length is zero or is not known when the graph is built."""

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import patterns
from tests.gradients import gradients
from tests.kernels.blockwise_problems import BLOCKS, WINDOW, problem
from tests.problems import B, G, H, V, answers, attended, inputs, on_tensorflow


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


@pytest.mark.slow
@on_tensorflow
@pytest.mark.parametrize("blocks", ["4096", "700", "keys"])
@pytest.mark.parametrize("name", ["all masks", "causal", "shaw", "biases", "relative bias"])
def test_unknown_lengths(name, blocks):
    import tensorflow as tf

    arrays, rest = problem(name)
    masks = [np.array(mask) for mask in rest.pop("mask", [])] if name == "all masks" else []

    def spec(array, axes, dtype):
        shape = list(array.shape)
        for axis in axes:
            if shape[axis] != 1:
                shape[axis] = None
        return tf.TensorSpec(shape, dtype)

    # Axes of the batch and of lengths.
    unknown = {"query": (0, 1), "key": (0, 1), "value": (0, 1), "bias": (0, -1, -2)}
    signature = [
        [spec(array, unknown.get(n, ()), "float32") for n, array in arrays.items()],
        [spec(mask, range(len(mask.shape)), "bool") for mask in masks],
    ]

    @tf.function(autograph=False, input_signature=signature)
    def step(tensors, masks):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            named = dict(zip(arrays, tensors, strict=True))
            given = {**rest, "mask": masks} if masks else rest
            output = attended("blockwise", named, given).output
            total = tf.reduce_sum(output**2)
        return output, tape.gradient(total, tensors, unconnected_gradients="zero")

    def check(arrays):
        output, found = step([tf.constant(x) for x in arrays.values()], masks)
        if 0 in arrays["query"].shape or 0 in arrays["key"].shape:
            assert output.shape == (*arrays["query"].shape[:3], V)
            for array in (output, *found):
                np.testing.assert_array_equal(array, 0.0)
            return
        given = {**rest, "mask": masks} if masks else rest

        def reference(*tensors):
            return attended("reference", dict(zip(arrays, tensors, strict=True)), given).output

        tensors = [tf.constant(array) for array in arrays.values()]
        np.testing.assert_allclose(output, reference(*tensors), rtol=0, atol=2e-5)
        expected = gradients(lambda *x: reference(*x) ** 2, tensors)
        for n, array, wanted in zip(arrays, found, expected, strict=True):
            error = 1e-5 * max(10.0, np.abs(wanted).max(initial=0.0))
            np.testing.assert_allclose(array, wanted, rtol=0, atol=error, err_msg=n)

    with BLOCKS[blocks]():
        check(arrays)
        # The same function, of other lengths and another batch.
        if name in ("causal", "shaw"):
            groups = arrays["key"].shape[2]
            for sizes in ((1, 70, 20), (3, 1, 5), (2, 6, 1), (2, 0, 4), (2, 4, 0), (0, 5, 6)):
                check({**arrays, **inputs(*sizes, groups=groups)})


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
