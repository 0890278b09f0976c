"""RelativeBias: T5's buckets by T5's rule, and a table that is looked up."""

import keras
import numpy as np
import pytest

from keras_attention.positions import RelativeBias
from tests.arrays import numpy, random
from tests.definition import bucket

B, T, S, H, K = 2, 5, 7, 3, 4


# T5's own numbers, numbers that leave little room, and some whose edges fall on no round distance.
RULES = [
    (32, 128, True),
    (32, 128, False),
    (32, 256, True),
    (16, 20, True),
    (64, 1000, False),
    (4, 2, True),
    (2, 5, False),
    (7, 90, False),
]


def table_bias(table, at, key_at, rule):
    """(H, T, S), one by one."""
    out = np.zeros((table.shape[1], len(at), len(key_at)))
    for h, t, s in np.ndindex(out.shape):
        out[h, t, s] = table[bucket(int(key_at[s]) - int(at[t]), *rule), h]
    return out


def built(*rule, heads=H):
    position = RelativeBias(*rule)
    position.build((B, T, heads, K), (B, S, heads, K))
    table = random(*position.embeddings.shape, seed=5)
    position.set_weights([table])
    return position, table


# Buckets


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_buckets_are_those_of_the_rule(rule):
    far = rule[1]
    found = RelativeBias(*rule).buckets()
    assert found.dtype == "int32" and found.shape == (2 * far + 1,)
    expected = [bucket(offset, *rule) for offset in range(-far, far + 1)]
    np.testing.assert_array_equal(found, expected)
    # What lies further than the table has the bucket of its ends.
    for offset in (far + 1, 2 * far, 10**6):
        assert bucket(offset, *rule) == found[-1] and bucket(-offset, *rule) == found[0]


def test_some_buckets_of_t5_are_known():
    near = RelativeBias().buckets()[128:]
    np.testing.assert_array_equal(near[:13], [0, *range(17, 24), 24, 24, 24, 24, 25])
    np.testing.assert_array_equal(near[[16, 23, 32, 64, 90, 91, 128]], [26, 27, 28, 30, 30, 31, 31])
    past = RelativeBias(bidirectional=False).buckets()[128::-1]
    np.testing.assert_array_equal(past[:18], [*range(16), 16, 16])
    np.testing.assert_array_equal(past[[18, 19, 21, 113, 128]], [16, 17, 18, 31, 31])
    assert not RelativeBias(bidirectional=False).buckets()[128:].any()


# The bias


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("start", [0, 10**6])
def test_the_bias_is_the_table(start, rule):
    position, table = built(*rule)
    at, key_at = start + np.arange(T), np.array([0, 1, 2, 3, 8, 20, 500])
    found = position.bias_between(H)(at, key_at)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    np.testing.assert_array_equal(
        numpy(found), table_bias(table, at, key_at, rule).astype("float32")
    )
