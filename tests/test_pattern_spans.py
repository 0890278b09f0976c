"""`span` and `parts` of patterns are true of every pair."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings

from keras_attention import patterns
from keras_attention.patterns import (
    Block,
    Causal,
    Dilated,
    Global,
    Prefix,
    RandomBlocks,
    SlidingWindow,
    Strided,
)
from tests.problems import PATTERNS

QUERIES, KEYS = np.arange(-12, 30), np.arange(-5, 40)


def evaluated(pattern, i=QUERIES, j=KEYS):
    return keras.ops.convert_to_numpy(pattern(i.astype("int32"), j.astype("int32")))


EVERY = [
    Causal(), SlidingWindow(3, 1), SlidingWindow(0, 0), Dilated(1), Dilated(4), Strided(1),
    Strided(5), Prefix(3), Block(1), Block(6), ~Causal(), ~Dilated(3), Causal() & Strided(3),
    Strided(3) & Strided(4), Dilated(4) & Dilated(6), Dilated(4) | Dilated(6), Causal() | Prefix(2),
    SlidingWindow(3, 9) & SlidingWindow(7, 2), SlidingWindow(3, 9) | SlidingWindow(7, 2),
    SlidingWindow(3, 9) | Causal(), Global(3), SlidingWindow(2, 1) | Global(2),
    RandomBlocks(30, 4, 2), SlidingWindow(2, 1) | RandomBlocks(30, 4, 2) | Block(4),
    Causal() & (SlidingWindow(2, 1) | RandomBlocks(30, 4, 2)), Block(4) | Dilated(2),
    Block(4) & Dilated(2), ~~Block(3), ~(Causal() & Prefix(2)),
]  # fmt: skip


def check_span(pattern):
    span, allowed = pattern.span(), evaluated(pattern)
    distance = KEYS[None] - QUERIES[:, None]
    seen = distance[allowed]
    assert span.left is None or (seen >= -span.left).all(), (pattern, span)
    assert span.right is None or (seen <= span.right).all(), (pattern, span)
    assert (seen % span.rate == 0).all(), (pattern, span)
    if span.by_distance:
        np.testing.assert_array_equal(evaluated(pattern, QUERIES + 7, KEYS + 7), allowed)
    if pattern.sees_itself:
        assert allowed[distance == 0].all(), pattern
    together = np.zeros(allowed.shape, int)
    for part in pattern.parts():
        together += evaluated(part)
    np.testing.assert_array_equal(together, allowed, err_msg=repr(pattern))


@pytest.mark.parametrize("pattern", EVERY, ids=map(repr, EVERY))
def test_spans_and_parts_of_every_pattern_are_true(pattern):
    check_span(pattern)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(PATTERNS)
def test_spans_and_parts_of_combinations_are_true(pattern):
    check_span(pattern)


def test_spans_say_what_is_known():
    assert Causal().span() == patterns.Span(None, 0, 1, True, exact=True)
    assert (Causal() & SlidingWindow(4, 2)).span() == patterns.Span(4, 0, 1, True, exact=True)
    assert (Dilated(4) & Dilated(6)).span().rate == 12
    assert (Dilated(4) | Dilated(6)).span().rate == 2
    assert Block(5).span() == patterns.Span(4, 4, 1, False)
    assert Prefix(3).span() == patterns.Span()
    itself = (Causal(), SlidingWindow(3, 0), Dilated(3), Causal() & Dilated(2))
    assert all(pattern.sees_itself for pattern in itself)
    assert not any(pattern.sees_itself for pattern in (~Causal(), Prefix(3), Prefix(3) & Causal()))
    assert len(Strided(3).parts()) == 2 and len((Strided(3) & Strided(4)).parts()) == 4
