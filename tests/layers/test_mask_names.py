"""Masks named as in other libraries: every layer with masks says the right name."""

import keras
import numpy as np
import pytest

import keras_attention as ka

X = np.zeros((2, 5, 8), "float32")
MASK = np.ones((2, 5), bool)
CALLS = {
    "AttentionPooling": lambda **masks: ka.AttentionPooling()(X, **masks),
    "FeedForwardAttention": lambda **masks: ka.FeedForwardAttention()(X, **masks),
    "ClassToken": lambda **masks: ka.ClassToken()(X, **masks),
    "AttentionRNN": lambda **masks: ka.AttentionRNN(
        ka.AttentionCell(keras.layers.GRUCell(8), "dot")
    )(X, X, **masks),
    "MultiHeadAttention": lambda **masks: ka.MultiHeadAttention(2, 4)(X, **masks),
    "TransformerBlock": lambda **masks: ka.TransformerBlock(8, 2)(X, **masks),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_right_name_is_said(name):
    with pytest.raises(TypeError, match=rf"{name} takes no `padding_mask`.*`(query_)?mask` \(B, "):
        CALLS[name](padding_mask=MASK)


@pytest.mark.parametrize("name", CALLS)
def test_the_right_name_is_taken(name):
    CALLS[name](mask=MASK)
