"""attention 5.0.0 (philipperemy/keras-attention): attention/attention.py."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import scores
from tests.docs.migration.pages import D, T, X, close, page, softmax, weights


def many_to_one(h, score, w_c):
    """From the score (B, T) of all states: tanh(W_c [c; h_T])."""
    context = np.einsum("bt,btd->bd", softmax(score), h)
    return np.tanh(np.concatenate([context, h[:, -1]], axis=-1) @ w_c)


@pytest.mark.parametrize("score", ["luong", "bahdanau"])
def test_attention_of_philipperemy(score):
    names = page("attention")
    symbol = keras.Input((T, D))
    last = symbol[:, -1:]
    kind = "general" if score == "luong" else scores.Additive(use_bias=False)
    context = ka.Attention(score=kind, name="attention")(last, symbol)
    joined = keras.layers.Concatenate()([context, last])
    combine = keras.layers.Dense(4, "tanh", use_bias=False, name="combine")
    model = keras.Model(symbol, keras.layers.Flatten()(combine(joined)))
    w_c, w1, w2, v = weights((2 * D, 4), (D, D), (D, D), (D, 1))
    h_t = X[:, -1]
    if score == "luong":
        names["load_luong"](model, w1, w_c)
        expected = np.einsum("bd,btd->bt", h_t, X @ w1)
    else:
        names["load_bahdanau"](model, w1, w2, v, w_c)
        expected = (np.tanh((h_t @ w1)[:, None] + X @ w2) @ v)[..., 0]
    close(model(X), many_to_one(X, expected, w_c))
