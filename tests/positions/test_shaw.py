"""`Shaw`: tables in float32, what may share one, files of 0.1.0, lengths of graphs."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests import definition
from tests.arrays import close, numpy, random

B, T, S, D = 2, 4, 6, 8


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_tables_are_read_in_float32_in_mixed_precision(policy):
    layer = ka.RelativePositionAttention(1, 1, 3, use_values=False, dtype=policy)
    x = np.ones((1, T, 1), "float32")
    layer.build(x.shape)
    # As bfloat16 or float16 hold them, these rows are one.
    table = 1024 + 0.25 * np.arange(7.0).reshape(1, 7, 1)
    layer.set_weights(
        [table if w.shape == table.shape else np.ones(w.shape) for w in layer.weights]
    )
    _, weights = layer(x, return_attention_scores=True)
    at = np.arange(T)
    scores = 1 + table[0, np.clip(at - at[:, None], -3, 3) + 3, 0]
    expected = definition.softmax(scores)
    assert expected[0].max() > 1.5 * expected[0].min()
    close(numpy(weights)[0, 0], expected, 2**-8)


def test_a_config_of_0_1_0_that_was_not_built_is_not_built():
    position = ka.positions.Shaw(2)
    position.build_from_config({"value_size": None})
    assert not position.built


@pytest.mark.ci
@pytest.mark.parametrize("position", ["disentangled", "shaw"])
def test_lengths_unknown_in_a_graph_may_be_zero(position):
    made = ka.positions.Shaw(2) if position == "shaw" else ka.positions.Disentangled(8, 6)
    layer = ka.MultiHeadAttention(2, 4, position=made)
    for known in (None, 1):
        query, value = keras.Input((known, D)), keras.Input((None, D))
        model = keras.Model([query, value], layer(query, value, return_attention_scores=True))
        for queries, keys in ((1, 0), (1, S), (T, S), (0, S), (0, 0), (T, 0)):
            if known in (None, queries):
                given = [random(B, queries, D), random(B, keys, D)]
                found, weights = model.predict(given, verbose=0)
                assert found.shape == (B, queries, D) and np.isfinite(found).all()
                assert weights.shape == (B, 2, queries, keys)
        model = keras.Model([query, value], layer(query, value))
        assert np.isfinite(model.predict([random(B, 1, D), random(B, 0, D)], verbose=0)).all()
