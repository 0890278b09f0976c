"""Parts of an `AttentionSpec`: each has the scores of the whole that are its own."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_attention import patterns
from keras_attention.kernels import reference
from keras_attention.spec import AXES, AttentionSpec, PositionBias, Positions
from tests.problems import given, integers, random, some

ops = keras.ops

B, T, H, K = 2, 5, 2, 4
ARRAYS = [random(B, T, H, K, seed=n) for n in range(3)]


def whole():
    """A problem with something in each field that has axes; but for a sink, which sums to one."""
    segments = integers(0, 2, B, T)
    distances = PositionBias(lambda i, j: -0.1 * ops.cast(ops.abs(i - j), "float32"))
    return given(
        *map(ops.convert_to_tensor, ARRAYS),
        mask=[some(*shape, rate=0.8) for shape in ((B, 1, 1, T), (1, 1, T, 1), (B, H, T, T))],
        bias=[random(H, T, 1), random(B, 1, T, T, seed=5), distances],
        pattern=patterns.SlidingWindow(3, 2),
        segment_ids=(segments, segments[:1]),
        multiplier=ops.convert_to_tensor(random(B, 1, 1, T, seed=6)),
        relative_keys=ops.convert_to_tensor(random(H, 5, K, seed=7)),
        normalization=lambda scores, mask: ops.sigmoid(scores),
        return_weights=True,
    )


def weights(*problem):
    return ops.convert_to_numpy(reference.run(*problem).weights)


@pytest.mark.parametrize("start", [1, np.int32(1)], ids=["number", "array"])
def test_rows_and_columns_have_the_weights_of_the_whole(start):
    spec, query, key, value = whole()
    expected = weights(spec, query, key, value)
    assert (expected > 0).any()
    at = slice(int(start), int(start) + 3)
    start = start if isinstance(start, int) else ops.convert_to_tensor(start)
    rows = weights(spec.rows(start, 3), query[:, at], key, value)
    np.testing.assert_allclose(rows, expected[:, :, at], atol=1e-6)
    columns = weights(spec.columns(start, 3), query, key[:, at], value[:, at])
    np.testing.assert_allclose(columns, expected[..., at], atol=1e-6)
    both = weights(spec.rows(start, 3).columns(start, 3), query[:, at], key[:, at], value[:, at])
    np.testing.assert_allclose(both, expected[:, :, at, at], atol=1e-6)


def test_columns_may_lack_the_key_of_a_query():
    spec, *_ = given(*ARRAYS, pattern=patterns.Causal())
    assert not spec.may_lack_keys
    assert not spec.rows(1, 3).may_lack_keys
    assert not spec.columns(0, T).may_lack_keys
    assert spec.columns(0, 3).may_lack_keys
    # In a cache, the entries that have a key include those of the queries.
    filled = ops.ones((B, T), "bool")
    at = dataclasses.replace(Positions.of(3, T, offset=2), own=True, filled=filled[:, None, None])
    cached = dataclasses.replace(spec, positions=at, masks=(at.filled,))
    assert not cached.rows(1, 2).may_lack_keys
    assert cached.columns(2, 3).may_lack_keys


@pytest.mark.any_backend
def test_each_field_has_its_axes():
    assert {field.name for field in dataclasses.fields(AttentionSpec)} == AXES.keys()
