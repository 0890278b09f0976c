"""Patterns: each against its definition, pair by pair in Python; combinations against set logic."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_attention
from keras_attention import patterns
from keras_attention.patterns import (
    And,
    Block,
    Causal,
    Dilated,
    Global,
    Or,
    Prefix,
    SlidingWindow,
    Strided,
)
from tests.arrays import numpy

few_examples = settings(max_examples=25, deadline=None, derandomize=True)

QUERIES, KEYS = range(-3, 9), range(7)

# Whether each pattern allows one pair, in Python's own arithmetic.
DEFINITIONS = [
    (Causal(), lambda i, j: j <= i),
    (SlidingWindow(2, 1), lambda i, j: i - 2 <= j <= i + 1),
    (SlidingWindow(0, 0), lambda i, j: i == j),
    (SlidingWindow(left=0, right=3), lambda i, j: i <= j <= i + 3),
    (Dilated(3), lambda i, j: (i - j) % 3 == 0),
    (Dilated(1), lambda i, j: True),
    (Strided(3), lambda i, j: (i - j) % 3 == 0 or abs(i - j) < 3),
    (Prefix(2), lambda i, j: j < 2),
    (Global(2), lambda i, j: i < 2 or j < 2),
    (Block(3), lambda i, j: i // 3 == j // 3),
    (Causal() | Prefix(2), lambda i, j: j <= i or j < 2),
    (SlidingWindow(4, 4) & Dilated(2), lambda i, j: abs(i - j) <= 4 and (i - j) % 2 == 0),
    (~Causal(), lambda i, j: j > i),
]
every_pattern = pytest.mark.parametrize(
    "pattern, attends", DEFINITIONS, ids=[repr(pattern) for pattern, _ in DEFINITIONS]
)


def by_definition(attends, queries=QUERIES, keys=KEYS):
    return np.array([[attends(i, j) for j in keys] for i in queries])


def evaluated(pattern, queries=QUERIES, keys=KEYS):
    answer = numpy(pattern(np.array(queries), np.array(keys)))
    assert answer.dtype == bool
    return answer


# Definitions


@every_pattern
def test_pattern_is_its_definition_for_all_pairs(pattern, attends):
    np.testing.assert_array_equal(evaluated(pattern), by_definition(attends))


@every_pattern
def test_rows_may_have_positions_of_their_own(pattern, attends):
    queries = np.array([[0, 1, 2], [4, 2, 7]])
    answer = numpy(pattern(queries, np.array(KEYS)))
    for row, expected in zip(answer, queries, strict=True):
        np.testing.assert_array_equal(row, by_definition(attends, expected))
    keys = np.array([[3, 1, 0, 2], [0, 0, 5, 6]])
    answer = numpy(pattern(queries, keys))
    for row, i, j in zip(answer, queries, keys, strict=True):
        np.testing.assert_array_equal(row, by_definition(attends, i, j))


# Combinations

base = st.one_of(
    st.just(Causal()),
    st.builds(SlidingWindow, st.integers(0, 3), st.integers(0, 3)),
    st.builds(Dilated, st.integers(1, 4)),
    st.builds(Strided, st.integers(1, 4)),
    st.builds(Prefix, st.integers(1, 4)),
    st.builds(Block, st.integers(1, 4)),
)
expressions = st.recursive(
    base,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


def pairs_asked(pattern):
    answer = evaluated(pattern)
    return {(i, j) for a, i in enumerate(QUERIES) for b, j in enumerate(KEYS) if answer[a, b]}


@few_examples
@given(expressions, expressions)
def test_operators_are_set_logic(first, second):
    assert pairs_asked(first & second) == pairs_asked(first) & pairs_asked(second)
    assert pairs_asked(first | second) == pairs_asked(first) | pairs_asked(second)
    assert pairs_asked(~first) == {(i, j) for i in QUERIES for j in KEYS} - pairs_asked(first)
    assert pairs_asked(~(first & second)) == pairs_asked(~first | ~second)


@few_examples
@given(expressions, expressions, expressions)
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
@given(expressions)
def test_repr_evaluates_to_an_equal_pattern(pattern):
    again = eval(repr(pattern), vars(patterns).copy())
    assert again == pattern and hash(again) == hash(pattern)


@few_examples
@given(expressions)
def test_config_goes_through_json_to_an_equal_pattern(pattern):
    config = keras.saving.serialize_keras_object(pattern)
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert again == pattern and hash(again) == hash(pattern)
    assert patterns.get(config) == pattern


@pytest.mark.parametrize("cls", [And, Or])
def test_repr_of_a_combination_of_one_evaluates_to_it(cls):
    pattern = cls([Causal()])
    assert eval(repr(pattern)) == pattern != Causal()
    np.testing.assert_array_equal(evaluated(pattern), evaluated(Causal()))


def test_patterns_that_differ_are_unequal():
    different = [pattern for pattern, _ in DEFINITIONS]
    different += [Causal() & Prefix(2), SlidingWindow(1, 2), Dilated(2), Strided(2), ~~Causal()]
    assert len(set(different)) == len(different)
    assert Causal() != "causal"
    assert Causal() == Causal() and SlidingWindow(1, 2) == SlidingWindow(left=1, right=2)


@pytest.mark.parametrize("other", ["causal", None, 3, True])
def test_operators_refuse_what_is_not_a_pattern(other):
    with pytest.raises(TypeError, match="unsupported operand"):
        Causal() & other
    with pytest.raises(TypeError, match="unsupported operand"):
        other | Causal()


# The slot


def test_get_takes_a_name_a_pattern_a_config_or_none():
    assert patterns.get("causal") == Causal()
    assert patterns.get(None) is None
    pattern = Prefix(3)
    assert patterns.get(pattern) is pattern
    assert set(patterns.BUILTIN) == {"causal"}


# Patterns of a user's own


@keras.saving.register_keras_serializable(package="test_patterns")
class Even(patterns.Pattern):
    def attends(self, i, j):
        return (j + 0 * i) % 2 == 0


@keras.saving.register_keras_serializable(package="test_patterns")
class Near(patterns.Pattern):
    """Keeps a list, a nested pattern and a number."""

    def __init__(self, distances, inside=None, shift=0):
        self.distances = distances
        self.inside = inside
        self.shift = shift

    def attends(self, i, j):
        allowed = keras.ops.equal(i - j, self.shift)
        for distance in self.distances:
            allowed = keras.ops.logical_or(allowed, keras.ops.equal(i - j, distance))
        if self.inside is not None:
            allowed = keras.ops.logical_and(allowed, self.inside.attends(i, j))
        return allowed


@keras.saving.register_keras_serializable(package="test_patterns")
class Majority(patterns.Pattern):
    """Keeps a list of patterns."""

    def __init__(self, members):
        self.members = members

    def attends(self, i, j):
        votes = sum(keras.ops.cast(member.attends(i, j), "int32") for member in self.members)
        return 2 * votes > len(self.members)


@keras.saving.register_keras_serializable(package="tests")
class Anything(patterns.Pattern):
    """Of no array at all."""

    def attends(self, i, j):
        return True


OWN = [
    (Anything(), lambda i, j: True),
    (Anything() & Even(), lambda i, j: j % 2 == 0),
    (~Anything(), lambda i, j: False),
    (Even(), lambda i, j: j % 2 == 0),
    (Causal() & Even(), lambda i, j: j <= i and j % 2 == 0),
    (Near([1, 3], inside=~Prefix(1), shift=2), lambda i, j: i - j in (1, 2, 3) and j >= 1),
    (
        Majority([Causal(), Dilated(2), Block(3)]),
        lambda i, j: (j <= i) + ((i - j) % 2 == 0) + (i // 3 == j // 3) >= 2,
    ),
]


@pytest.mark.parametrize("pattern, attends", OWN, ids=[repr(pattern) for pattern, _ in OWN])
def test_a_pattern_of_ones_own_computes_compares_and_saves(pattern, attends, tmp_path):
    np.testing.assert_array_equal(evaluated(pattern), by_definition(attends))
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
    seen = by_definition(attends, KEYS)
    np.testing.assert_array_equal(numpy(scores) > 0, np.broadcast_to(seen, scores.shape))
    model.save(tmp_path / "model.keras")
    loaded, _ = keras.saving.load_model(tmp_path / "model.keras")(x)
    np.testing.assert_array_equal(numpy(loaded), numpy(output))
