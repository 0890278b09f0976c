"""ALiBi: slopes of the paper's rule, and the bias everywhere it is added."""

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention
from keras_attention.positions import ALiBi
from tests import definition
from tests.arrays import numpy, random
from tests.compiled import compiled
from tests.definition import slopes

B, T, S, K = 2, 5, 7, 4


def bias(at, key_at, heads, max_bias=8.0):
    """(H, T, S), one by one."""
    out = np.zeros((heads, len(at), len(key_at)))
    for h, t, s in np.ndindex(out.shape):
        out[h, t, s] = -slopes(heads, max_bias)[h] * abs(int(at[t]) - int(key_at[s]))
    return out


# The equation


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 32, 71])
@pytest.mark.parametrize("max_bias", [8.0, 4])
def test_slopes_are_those_of_the_rule(heads, max_bias):
    found = ALiBi(max_bias).slopes(heads)
    np.testing.assert_allclose(found, slopes(heads, max_bias), rtol=1e-12)
    assert found.shape == (heads,) and (found > 0).all() and (found < 1).all()
    assert len(set(found)) == heads


def test_slopes_are_those_of_the_paper():
    # Section 3: "for 8 heads, 1/2, 1/4, …, 1/256; for 16 heads, 1/2^0.5, 1/2, 1/2^1.5 …".
    np.testing.assert_allclose(ALiBi().slopes(8), 0.5 ** np.arange(1, 9))
    np.testing.assert_allclose(ALiBi().slopes(16), 0.5 ** (np.arange(1, 17) / 2))
    expected = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    np.testing.assert_allclose(ALiBi().slopes(6), expected)


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("start", [0, 2, 100000])
def test_the_bias_is_the_equation(start, heads):
    at, key_at = start + np.arange(T), np.arange(S)
    found = ALiBi().bias_between(heads)(at, key_at)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_allclose(numpy(found), bias(at, key_at, heads), rtol=1e-6)


def test_rows_may_have_positions_of_their_own():
    at = np.array([[0, 1, 2, 3, 4], [7, 7, 8, 0, 30]])
    key_at = np.array([np.arange(S), np.arange(S)[::-1]])
    for keys in (key_at, key_at[0]):
        found = numpy(ALiBi().bias_between(3)(at, keys))
        assert found.shape == (B, 3, T, S)
        for row in range(B):
            expected = bias(at[row], np.broadcast_to(keys, (B, S))[row], 3)
            np.testing.assert_allclose(found[row], expected, rtol=1e-6)


# In layers


@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_adds_it(causal):
    query, value = random(B, T, 2 * K, seed=1), random(B, S, 2 * K, seed=2)
    layer = MultiHeadAttention(6, K, position="alibi")
    layer.build(query.shape, value.shape)

    def call(query, value):
        found = layer(query, value, use_causal_mask=causal, return_attention_scores=True)
        return found[1], layer.query_dense(query), layer.key_dense(value)

    weights, q, k = map(numpy, compiled(call, query, value))
    mask = np.arange(S) <= np.arange(T)[:, None] if causal else True
    _, expected = definition.attend(q, k, k, bias=bias(np.arange(T), np.arange(S), 6), mask=mask)
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-4, atol=1e-6)
