"""NaN and infinity where a mask excludes elements in some of their roles: as if they were 0."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, sequence
from tests.gradients import weight_gradients

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 6, 8)).astype("float32")
MEMORY = RANDOM.normal(size=(2, 7, 8)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 0, 1, 1, 0]], bool)
OF_MEMORY = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0]], bool)


def attention(**options):
    layer = ka.MultiHeadAttention(2, 4, **options)
    layer.build(X.shape, X.shape)
    return layer


# A layer, a call whose queries at padding may be anything, and the mask of its input.
OF_SELF = {
    "value_mask": lambda layer, x: layer(x, value_mask=MASK),
    "key_mask": lambda layer, x: layer(x, x, key_mask=MASK),
    "attention_mask (B, 1, S)": lambda layer, x: layer(x, attention_mask=MASK[:, None]),
    "attention_mask (B, 1, 1, S)": lambda layer, x: layer(x, attention_mask=MASK[:, None, None]),
    "positions of one sequence": lambda layer, x: layer(
        x, value_mask=MASK, positions=np.arange(6), segment_ids=np.zeros((2, 6), int)
    ),
    "a list": lambda layer, x: layer([x, x], value_mask=MASK, attention_mask=MASK[:, None]),
}


def same_with_garbage(layer, call, array, mask, garbage):
    """Checks that garbage outside `mask` changes neither the result of `call` nor a gradient."""
    clean, dirty = (np.where(mask[..., None], array, np.float32(x)) for x in (0.0, garbage))
    for function in (call, lambda x: weight_gradients(layer, call, [x])):
        found, expected = (keras.tree.flatten(function(x)) for x in (dirty, clean))
        for one, other in zip(found, expected, strict=True):
            one, other = map(keras.ops.convert_to_numpy, (one, other))
            assert np.isfinite(one).all()
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("garbage", [np.nan, -np.inf])
@pytest.mark.parametrize("way", OF_SELF)
def test_keys_that_are_excluded_reach_no_row_of_real_queries(way, garbage):
    layer = attention(pattern=patterns.SlidingWindow(9, 9))

    def call(x):
        x = keras.ops.convert_to_tensor(x)
        return keras.ops.where(MASK[..., None], OF_SELF[way](layer, x), 0.0)

    # The gradients of the weights have the padding's own queries in them.
    clean, dirty = (np.where(MASK[..., None], X, np.float32(x)) for x in (0.0, garbage))
    found, expected = (keras.ops.convert_to_numpy(call(x)) for x in (dirty, clean))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(2, 1, 7), (2, 1, 1, 7)])
def test_keys_that_an_attention_mask_leaves_out_of_all_queries(shape, garbage):
    layer = attention()

    def call(memory):
        memory = keras.ops.convert_to_tensor(memory)
        return layer(X, memory, attention_mask=OF_MEMORY.reshape(shape))

    same_with_garbage(layer, call, MEMORY, OF_MEMORY, garbage)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_masked_steps_of_a_recurrent_layer(score):
    cell = ka.AttentionCell(keras.layers.GRUCell(8), score)
    layer = ka.AttentionRNN(cell, return_sequences=True)
    layer(X, MEMORY)

    def call(x):
        return layer(keras.ops.convert_to_tensor(x), MEMORY, mask=MASK)

    same_with_garbage(layer, call, X, MASK, np.nan)


def test_one_sequence_with_one_mask_is_cleared_once():
    x, mask = keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(MASK)
    query, value, key = sequence.without_padding((x, x, x), (mask, mask, mask))
    assert query is value is key
    query, value, key = sequence.without_padding((x, x, x), (None, mask, mask))
    assert query is x
    assert value is key
