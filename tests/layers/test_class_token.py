"""The class token: its position, and that it is never masked."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import masks
from tests.arrays import numpy

B, T, D = 3, 4, 6


X = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
KEPT = np.array([[True] * 4, [False, False, True, True], [False] * 4])


def test_it_stands_first_and_the_sequence_follows():
    layer = ka.ClassToken("ones")
    output = numpy(layer(X))
    np.testing.assert_array_equal(output[:, 0], 1.0)
    np.testing.assert_array_equal(output[:, 1:], X)
    assert masks.implicit(layer(X)) is None


@pytest.mark.parametrize("carried", [False, True])
def test_it_is_never_masked(carried):
    x = keras.ops.convert_to_tensor(X)
    if carried:
        output = ka.ClassToken()(masks.carry(x, keras.ops.convert_to_tensor(KEPT)))
    else:
        output = ka.ClassToken()(x, mask=KEPT)
    expected = np.concatenate([np.ones((B, 1), bool), KEPT], axis=1)
    np.testing.assert_array_equal(numpy(masks.implicit(output)), expected)


def test_as_a_summary_it_skips_padding_on_either_side():
    token = ka.ClassToken()
    block = ka.TransformerBlock(8, 2)
    x = masks.carry(keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(KEPT))
    found = numpy(block(token(x))[:, 0])
    alone = numpy(block(token(X[1:2, 2:]))[:, 0])
    np.testing.assert_allclose(found[1:2], alone, rtol=1e-5, atol=1e-6)
    # With nothing but padding, the token sees itself.
    empty = numpy(block(token(X[:1, :0]))[:, 0])
    np.testing.assert_allclose(found[2:], empty, rtol=1e-5, atol=1e-6)


def test_it_stands_before_a_sequence_of_nothing():
    output = ka.ClassToken()(X[:, :0], mask=KEPT[:, :0])
    assert output.shape == (B, 1, D)
    np.testing.assert_array_equal(numpy(masks.implicit(output)), np.ones((B, 1), bool))
