"""The kernel for one query against the reference, and where it is chosen."""

import keras
import numpy as np
import pytest

from keras_attention import ops
from tests import problems
from tests.arrays import numpy, random
from tests.problems import B, H, K, S, V, explain, on_tensorflow


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
        numpy(problems.attend(query, key, value, kernel=name).output)
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
        return ops.attend(query, key, value, kernel="single_query")

    expected = [numpy(attend(row)) for row in zip(query, key, value, strict=True)]
    found = keras.ops.vectorized_map(
        attend, tuple(map(keras.ops.convert_to_tensor, (query, key, value)))
    )
    np.testing.assert_allclose(numpy(found), np.stack(expected), rtol=1e-5, atol=1e-6)


def test_one_query_is_chosen_for_it_alone():
    # Of unequal sizes, which no backend has a kernel for.
    arrays = random(B, 1, H, K), random(B, S, 2, K), random(B, S, 2, V)
    assert explain(*arrays)[0] == "single_query"
    assert explain(*arrays, dropout=0.1)[0] == "blockwise"
    assert explain(arrays[1], *arrays[1:])[0] == "blockwise"
    with pytest.raises(ValueError, match="there is more than one query"):
        explain(arrays[1], *arrays[1:], kernel="single_query")


@on_tensorflow
def test_one_query_of_an_unknown_number_of_queries():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((B, None, H, K))], autograph=False)
    def attended(query):
        keys, values = random(B, S, 2, K), random(B, S, 2, V)
        return ops.attend(query, keys, values, kernel="single_query")

    with pytest.raises(ValueError, match="number of queries is not known where the graph"):
        attended(random(B, 1, H, K))


@on_tensorflow
@pytest.mark.parametrize("kernel", ["single_query", "reference", "blockwise"])
def test_one_feature_in_a_graph_that_is_compiled_later(kernel):
    import tensorflow as tf

    arrays = [1e17 * random(B, 1, H, 1), 1e17 * random(B, S, H, 1), random(B, S, H, V)]

    def attend(*arrays):
        return ops.attend(*arrays, kernel=kernel)

    specs = [tf.TensorSpec(array.shape, "float32") for array in arrays]
    graph = tf.function(attend, autograph=False).get_concrete_function(*specs)
    arrays = list(map(tf.constant, arrays))
    found = tf.function(lambda *x: graph(*x), autograph=False, jit_compile=True)(*arrays)
    np.testing.assert_allclose(found, attend(*arrays), atol=1e-6)
