"""The class token, and several: their positions, and that they are never masked."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from tests.arrays import numpy

B, T, D = 3, 4, 6


X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
KEPT = np.array([[True] * 4, [False, False, True, True], [False] * 4])


@pytest.mark.parametrize("count", [1, 3])
def test_it_stands_first_and_the_sequence_follows(count):
    layer = ka.ClassToken(num_tokens=count)
    output = numpy(layer(X))
    tokens = numpy(layer.token)
    assert tokens.shape == (1, count, D) and len(np.unique(tokens)) == count * D
    np.testing.assert_array_equal(output[:, :count], np.repeat(tokens, B, axis=0))
    np.testing.assert_array_equal(output[:, count:], X)
    assert masks.implicit(layer(X)) is None


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_it_is_never_masked(carried, count):
    x, layer = keras.ops.convert_to_tensor(X), ka.ClassToken(num_tokens=count)
    if carried:
        output = layer(masks.carry(x, keras.ops.convert_to_tensor(KEPT)))
    else:
        output = layer(x, mask=KEPT)
    expected = np.concatenate([np.ones((B, count), bool), KEPT], axis=1)
    np.testing.assert_array_equal(numpy(masks.implicit(output)), expected)
