"""Patterns: each against its definition, pair by pair in Python; its promises; combinations."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings

import keras_attention
from keras_attention import patterns
from keras_attention.patterns import (
    And,
    BigBird,
    Block,
    Causal,
    Dilated,
    Global,
    Or,
    Prefix,
    RandomBlocks,
    SlidingWindow,
    Span,
    Strided,
)
from tests import definition
from tests.arrays import numpy
from tests.fuzz.configurations import PATTERNS

few_examples = settings(max_examples=25, deadline=None, derandomize=True)

QUERIES, KEYS = np.arange(-12, 30), np.arange(-5, 40)
RANDOM = RandomBlocks(30, 4, 2)
BIG_BIRD = BigBird(29, 4, 2, seed=3)
EVERY = [
    Causal(), SlidingWindow(3, 1), SlidingWindow(0, 0), SlidingWindow(left=0, right=3), Dilated(1),
    Dilated(4), Strided(1), Strided(5), Prefix(3), Block(1), Block(6), ~Causal(), ~Dilated(3),
    Causal() & Strided(3), Strided(3) & Strided(4), Dilated(4) & Dilated(6), ~~Block(3),
    Dilated(4) | Dilated(6), Causal() | Prefix(2), SlidingWindow(3, 9) & SlidingWindow(7, 2),
    SlidingWindow(3, 9) | SlidingWindow(7, 2), SlidingWindow(3, 9) | Causal(), Global(3),
    SlidingWindow(2, 1) | Global(2), RANDOM, SlidingWindow(2, 1) | RANDOM | Block(4),
    Causal() & (SlidingWindow(2, 1) | RANDOM), Block(4) | Dilated(2), Block(4) & Dilated(2),
    ~(Causal() & Prefix(2)), SlidingWindow(4, 4) & Dilated(2), Block(4, 1), Global(3, 20), BIG_BIRD,
    Causal() & BIG_BIRD, RandomBlocks(30, 4, 1, 2, distance=2, ends=1),
]  # fmt: skip


def evaluated(pattern, queries=QUERIES, keys=KEYS):
    answer = numpy(pattern(np.array(queries), np.array(keys)))
    assert answer.dtype == bool
    return answer


def check(pattern, queries=QUERIES, keys=KEYS):
    """Its pairs, and that its span and its parts are true of every pair."""
    span, allowed = pattern.span(), evaluated(pattern, queries, keys)
    # The choice of blocks has no definition but by its seed, which tests/kernels has.
    if "RandomBlocks" not in repr(pattern) and "BigBird" not in repr(pattern):
        expected = [[definition.attends(pattern, i, j) for j in keys] for i in queries]
        np.testing.assert_array_equal(allowed, expected)
    distance = keys[None] - queries[:, None]
    seen = distance[allowed]
    assert span.left is None or (seen >= -span.left).all(), (pattern, span)
    assert span.right is None or (seen <= span.right).all(), (pattern, span)
    assert (seen % span.rate == 0).all(), (pattern, span)
    if span.by_distance:
        np.testing.assert_array_equal(evaluated(pattern, queries + 7, keys + 7), allowed)
    if pattern.sees_itself:
        assert allowed[distance == 0].all(), pattern
    together = np.sum([evaluated(part, queries, keys) for part in pattern.parts()], axis=0)
    np.testing.assert_array_equal(together, allowed, err_msg=repr(pattern))


@pytest.mark.parametrize("pattern", EVERY, ids=map(repr, EVERY))
def test_pairs_spans_and_parts_of_every_pattern_are_true(pattern):
    check(pattern)
    # Rows may have positions of their own.
    queries, keys = np.array([[0, 1, 2], [4, 2, 7]]), np.array([[3, 1, 0, 2], [0, 0, 5, 6]])
    answer = numpy(pattern(queries, keys))
    for row, i, j in zip(answer, queries, keys, strict=True):
        np.testing.assert_array_equal(row, evaluated(pattern, i, j))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(PATTERNS)
def test_pairs_spans_and_parts_of_combinations_are_true(pattern):
    check(pattern)


def test_spans_say_what_is_known():
    assert Causal().span() == Span(None, 0, 1, True, exact=True)
    assert (Causal() & SlidingWindow(4, 2)).span() == Span(4, 0, 1, True, exact=True)
    assert (Dilated(4) & Dilated(6)).span().rate == 12
    assert (Dilated(4) | Dilated(6)).span().rate == 2
    assert Block(5).span() == Span(4, 4, 1, False)
    assert Prefix(3).span() == Span()
    itself = (Causal(), SlidingWindow(3, 0), Dilated(3), Causal() & Dilated(2))
    assert all(pattern.sees_itself for pattern in itself)
    assert not any(pattern.sees_itself for pattern in (~Causal(), Prefix(3), Prefix(3) & Causal()))
    assert len(Strided(3).parts()) == 2 and len((Strided(3) & Strided(4)).parts()) == 4


def test_positions_choose_the_global_tokens_of_each_row():
    """As in Longformer's masks: all others are as far apart as before."""
    chosen = np.array([[0, 1, 0, 0, 0, 1, 0], [0] * 7, [0, 0, 1, 0, 0, 0, 0]], bool)
    at, index = np.where(chosen, 0, 1 + np.arange(7)), np.arange(7)
    near = abs(index[:, None] - index) <= 2
    seen = near | chosen[:, :, None] | chosen[:, None]
    np.testing.assert_array_equal(evaluated(SlidingWindow(2, 2) | Global(1), at, at), seen)


# Combinations


@few_examples
@given(PATTERNS, PATTERNS, PATTERNS)
def test_order_grouping_and_repetition_do_not_matter(a, b, c):
    for left, right in (
        (a & b, b & a),
        (a | b, b | a),
        ((a & b) & c, a & (b & c)),
        ((a | b) | c, c | (b | a)),
        ((a & b) & a, a & b),
    ):
        assert left == right and hash(left) == hash(right)


@few_examples
@given(PATTERNS)
def test_repr_and_config_are_of_an_equal_pattern(pattern):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(pattern)))
    again = eval(repr(pattern), vars(patterns).copy())
    for other in (again, keras.saving.deserialize_keras_object(config), patterns.get(config)):
        assert other == pattern and hash(other) == hash(pattern)


@pytest.mark.parametrize("cls", [And, Or])
def test_repr_of_a_combination_of_one_evaluates_to_it(cls):
    pattern = cls([Causal()])
    assert eval(repr(pattern)) == pattern != Causal()
    np.testing.assert_array_equal(evaluated(pattern), evaluated(Causal()))


def test_patterns_that_differ_are_unequal():
    different = [*EVERY, Causal() & Prefix(2), SlidingWindow(1, 2), Dilated(2), ~~Causal()]
    assert len(set(different)) == len(different)
    assert Causal() != "causal"
    assert Causal() == Causal() and SlidingWindow(1, 2) == SlidingWindow(left=1, right=2)


@pytest.mark.parametrize("other", ["causal", None, 3, True])
def test_operators_refuse_what_is_not_a_pattern(other):
    with pytest.raises(TypeError, match="unsupported operand"):
        Causal() & other
    with pytest.raises(TypeError, match="unsupported operand"):
        other | Causal()


# Patterns of a user's own


@keras.saving.register_keras_serializable(package="test_patterns")
class Even(patterns.Pattern):
    def attends(self, i, j):
        return (j + 0 * i) % 2 == 0


@keras.saving.register_keras_serializable(package="test_patterns")
class Near(patterns.Pattern):
    """Keeps a list, a nested pattern, a number and a list of patterns, of which most must agree."""

    def __init__(self, distances, inside=None, shift=0, members=()):
        self.distances = distances
        self.inside = inside
        self.shift = shift
        self.members = list(members)

    def attends(self, i, j):
        allowed = keras.ops.equal(i - j, self.shift)
        for distance in self.distances:
            allowed = keras.ops.logical_or(allowed, keras.ops.equal(i - j, distance))
        if self.inside is not None:
            allowed = keras.ops.logical_and(allowed, self.inside.attends(i, j))
        votes = sum(keras.ops.cast(member.attends(i, j), "int32") for member in self.members)
        return keras.ops.logical_or(allowed, 2 * votes > len(self.members))


@keras.saving.register_keras_serializable(package="tests")
class Anything(patterns.Pattern):
    """Of no array at all."""

    def attends(self, i, j):
        return True


OWN = [
    (Anything(), lambda i, j: True),
    (Anything() & Even(), lambda i, j: j % 2 == 0),
    (~Anything(), lambda i, j: False),
    (Causal() & Even(), lambda i, j: j <= i and j % 2 == 0),
    (Near([1, 3], inside=~Prefix(1), shift=2), lambda i, j: i - j in (1, 2, 3) and j >= 1),
    (
        Near([9], members=[Causal(), Dilated(2), Block(3)]),
        lambda i, j: i - j in (0, 9) or (j <= i) + ((i - j) % 2 == 0) + (i // 3 == j // 3) >= 2,
    ),
]


@pytest.mark.parametrize("pattern, attends", OWN, ids=[repr(pattern) for pattern, _ in OWN])
def test_a_pattern_of_ones_own_computes_compares_and_saves(pattern, attends, tmp_path):
    seen = np.array([[attends(i, j) for j in KEYS.tolist()] for i in QUERIES.tolist()])
    np.testing.assert_array_equal(evaluated(pattern), seen)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(pattern)))
    again = keras.saving.deserialize_keras_object(config)
    assert again == pattern and hash(again) == hash(pattern) and again != Causal()
    np.testing.assert_array_equal(evaluated(again), evaluated(pattern))
    assert eval(repr(pattern), {**vars(patterns), **globals()}) == pattern

    symbol = keras.Input((None, 4))
    layer = keras_attention.SelfAttention(2, 3, pattern=pattern)
    model = keras.Model(symbol, layer(symbol, return_attention_scores=True))
    x = np.random.default_rng(1).normal(size=(2, 7, 4)).astype("float32")
    output, scores = model(x)
    seen = np.array([[attends(i, j) for j in range(7)] for i in range(7)])
    np.testing.assert_array_equal(numpy(scores) > 0, np.broadcast_to(seen, scores.shape))
    model.save(tmp_path / "model.keras")
    loaded, _ = keras.saving.load_model(tmp_path / "model.keras")(x)
    np.testing.assert_array_equal(numpy(loaded), numpy(output))


class Unregistered(Anything):
    pass


def test_a_file_of_a_class_that_is_not_registered_warns(tmp_path):
    symbol = keras.Input((None, 4))
    layer = keras_attention.SelfAttention(2, 3, pattern=Unregistered())
    model = keras.Model(symbol, layer(symbol))
    layer.get_config()  # As a copy of a layer asks for it, which is no file.
    with pytest.warns(UserWarning, match="Unregistered is not registered: .*custom_objects"):
        model.save(tmp_path / "model.keras")
