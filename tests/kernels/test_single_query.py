"""The kernel for one query against the reference, and where it is chosen."""

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import patterns
from tests import problems
from tests.arrays import numpy, random
from tests.kernels.small_blocks import (
    EMPTY,
    SEGMENTS,
    SHAW,
    B,
    H,
    K,
    S,
    V,
    check,
    distance,
    some,
    tensor,
)
from tests.problems import explain

ONE = {
    "all heads apart": (4, {}, {}),
    "one key head": (1, {}, {"mask": some(B, 1, 1, S)}),
    "cache": (
        2,
        {},
        {"pattern": patterns.SlidingWindow(9, 0), "offset": np.array([11, 20], "int32")},
    ),
    "rows without keys": (2, {"bias": random(1, H, 1, S)}, {"mask": EMPTY[:, :, :1]}),
    "capped, with a sink": (
        2,
        {"bias": random(H, 1, S), "sink": random(H)},
        {"logit_soft_cap": 2.0},
    ),
    "shaw": (4, SHAW, {"pattern": patterns.SlidingWindow(9, 4), "offset": 3}),
    "shaw, anywhere": (4, SHAW, {"offset": np.array([3, 30], "int32")}),
    "segments": (2, {}, {"segment_ids": (SEGMENTS[0][:, :1], SEGMENTS[1]), "bias": distance}),
}


@pytest.mark.parametrize("name", ONE)
def test_one_query_is_the_reference(name):
    groups, learned, given = ONE[name]
    given = {key: tensor(x) if isinstance(x, np.ndarray) else x for key, x in given.items()}
    check("single_query", groups, learned, given, (1, S))


# Keys of one feature are no more numbers than scores, and always clipped.
@pytest.mark.parametrize("features", [K, 1])
@pytest.mark.parametrize("groups", [1, 4])
def test_one_query_and_huge_numbers(groups, features):
    """Keys are clipped for products to be finite, only where that makes a difference."""
    query, key = random(B, 1, 4, features), random(B, S, groups, features)
    value = random(B, S, groups, V)
    query[0, :, 1], key[1, 3] = 3e38, -3e38
    value[0, :, -1] = 3e38
    found, expected = (
        keras.ops.convert_to_numpy(problems.attend(query, key, value, kernel=name).output)
        for name in ("single_query", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
    assert np.isfinite(found).all()


def test_one_query_of_each_row_that_is_mapped():
    """With keys small and huge, of which only the second are clipped."""
    query, key, value = random(3, 1, 1, 2, 8), random(3, 1, S, 2, 8), random(3, 1, S, 2, 8)
    key[1] *= 1e20

    def attend(row):
        query, key, value = row
        return keras_attention.ops.attend(query, key, value, kernel="single_query")

    expected = [numpy(attend(row)) for row in zip(query, key, value, strict=True)]
    found = keras.ops.vectorized_map(attend, tuple(map(tensor, (query, key, value))))
    np.testing.assert_allclose(numpy(found), np.stack(expected), rtol=1e-5, atol=1e-6)


def test_one_query_is_chosen_for_it_alone():
    # Of unequal sizes, which no backend has a kernel for.
    arrays = random(B, 1, H, K), random(B, S, 2, K), random(B, S, 2, V)
    assert explain(*arrays)[0] == "single_query"
    assert explain(*arrays, dropout=0.1)[0] == "blockwise"
    assert explain(arrays[1], *arrays[1:])[0] == "blockwise"
    with pytest.raises(ValueError, match="there is more than one query"):
        explain(arrays[1], *arrays[1:], kernel="single_query")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="others know every length")
def test_one_query_of_an_unknown_number_of_queries():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((B, None, H, K))], autograph=False)
    def attended(query):
        keys, values = random(B, S, 2, K), random(B, S, 2, V)
        return keras_attention.ops.attend(query, keys, values, kernel="single_query")

    with pytest.raises(ValueError, match="number of queries is not known where the graph"):
        attended(random(B, 1, H, K))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of graphs of TensorFlow")
@pytest.mark.parametrize("kernel", ["single_query", "reference", "blockwise"])
def test_one_feature_in_a_graph_that_is_compiled_later(kernel):
    import tensorflow as tf

    arrays = [1e17 * random(B, 1, H, 1), 1e17 * random(B, S, H, 1), random(B, S, H, V)]

    def attend(*arrays):
        return keras_attention.ops.attend(*arrays, kernel=kernel)

    specs = [tf.TensorSpec(array.shape, "float32") for array in arrays]
    graph = tf.function(attend, autograph=False).get_concrete_function(*specs)
    arrays = [tensor(array) for array in arrays]
    found = tf.function(lambda *x: graph(*x), autograph=False, jit_compile=True)(*arrays)
    np.testing.assert_allclose(found, attend(*arrays), atol=1e-6)
