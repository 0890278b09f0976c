"""ALiBi: slopes of the paper's rule, and the bias."""

import keras
import numpy as np
import pytest

from keras_attention.positions import ALiBi
from tests.arrays import numpy
from tests.definition import slopes

T, S = 5, 7


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
