"""Greedy and beam search: against loops over lists in float64, against all hypotheses there are."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_attention import generation
from tests.generation import toy


def all_hypotheses(table, token, row, max_tokens, alpha, stop_tokens):
    """Every hypothesis there is, best first."""
    found = []
    vocabulary = table.shape[1]
    for length in range(1, max_tokens + 1):
        for tokens in itertools.product(range(vocabulary), repeat=length):
            ends = tokens[-1] in stop_tokens
            if set(tokens[:-1]) & set(stop_tokens) or not (ends or length == max_tokens):
                continue
            state, log_probs = row, []
            for before, new in zip((token, *tokens), tokens, strict=False):
                state = toy.next_state(state, before, 5 * row)
                log_probs.append(toy.log_probabilities(table, state)[new])
            found.append((sum(log_probs) / ((5 + length) / 6) ** alpha, tokens, tuple(log_probs)))
    return sorted(found, key=lambda hypothesis: -hypothesis[0])


def assert_hypotheses(found, row, expected, max_tokens):
    """A row of what `beam_search` found is the expected list's beginning."""
    for rank in range(found.scores.shape[1]):
        if rank >= len(expected):
            assert found.scores[row, rank] == -np.inf
            assert found.lengths[row, rank] == 0
            assert (found.tokens[row, rank] == toy.PAD).all()
            assert (found.log_probabilities[row, rank] == 0).all()
            continue
        score, tokens, log_probs = expected[rank]
        np.testing.assert_allclose(found.scores[row, rank], score, rtol=1e-5, atol=1e-5)
        padded = toy.padded(tokens, max_tokens, toy.PAD)
        np.testing.assert_array_equal(found.tokens[row, rank], padded)
        assert found.lengths[row, rank] == len(tokens)
        np.testing.assert_allclose(
            found.log_probabilities[row, rank],
            toy.padded(log_probs, max_tokens, 0),
            rtol=1e-4,
            atol=1e-5,
        )


# Greedy


@pytest.mark.skipif(toy.ON_JAX, reason="JAX traces a loop once")
@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_the_loop_ends_when_every_row_has(method):
    table = np.full((toy.STATES, 4), -9.0, "float32")
    table[:, 2] = 9.0
    calls, (cache, memory) = [], toy.toy_start([0, 1])
    run = getattr(generation, method)
    step = toy.toy_step(toy.ops.convert_to_tensor(table), calls)
    seed = {"seed": 0} if method == "sample" else {}
    run(step, [0, 1], cache, memory, max_tokens=50, stop_tokens=(2,), **seed)
    assert calls == [(2,)]


def test_what_is_not_to_come_has_logits_of_minus_infinity():
    table = toy.random_table()
    table[:, :4] = -np.inf
    found = toy.toy("greedy", table, toy.TOKENS, max_tokens=toy.LENGTH, stop_tokens=())
    assert (found.tokens >= 4).all()
    assert np.isfinite(found.log_probabilities).all()
    found = toy.toy("sample", table, [0] * 50, max_tokens=4, temperature=5.0, seed=0)
    assert (found.tokens >= 4).all()
    assert (found.tokens == 4).any() and (found.tokens == 5).any()
    found = toy.toy("beam_search", table, toy.TOKENS, max_tokens=2, num_beams=4, num_return=4)
    assert (found.tokens >= 4).all()
    assert np.isfinite(found.scores).all()


# Beam search


@pytest.mark.ci
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    scale=st.floats(0.1, 5.0),
    # Few combinations of what shapes depend on: JAX compiles each of them.
    sizes=st.sampled_from(
        [(2, 4, 2, 16, (0,), 2.0), (3, 3, 3, 27, (1,), 0.0), (3, 2, 5, 9, (1, 0), 0.7)]
    ),
)
def test_with_enough_beams_it_is_exhaustive_search(seed, scale, sizes):
    vocabulary, max_tokens, num_return, num_beams, stop, alpha = sizes
    table, tokens = toy.random_table(vocabulary, seed, scale), [1, 0]
    found = toy.toy(
        "beam_search",
        table,
        tokens,
        num_beams=num_beams,
        num_return=num_return,
        max_tokens=max_tokens,
        length_penalty=alpha,
        stop_tokens=stop,
    )
    for row, token in enumerate(tokens):
        expected = all_hypotheses(table, token, row, max_tokens, alpha, stop)
        scores = toy.padded([e[0] for e in expected[:num_return]], num_return, -np.inf)
        np.testing.assert_allclose(found.scores[row], scores, rtol=1e-4, atol=1e-5)
        apart = np.abs(np.diff([e[0] for e in expected[: num_return + 1]])) > 1e-4
        if apart.all():
            assert_hypotheses(found, row, expected, max_tokens)


@pytest.mark.skipif(toy.ON_JAX, reason="JAX traces a loop once")
@pytest.mark.parametrize(("alpha", "steps"), [(0.0, 1), (1.0, 3)])
def test_it_stops_when_no_live_beam_can_win_and_not_before(alpha, steps):
    table = np.log(np.array([[0.6, 0.4, 1e-9]] + [[1e-9, 0.25, 0.75]] * 9, "float32"))
    # With α = 1, a live beam after n steps can reach (log 0.4 + (n − 1) log 0.75) / 2.5, which is
    # −0.37, −0.48, −0.60; "stop" at once has log 0.6 = −0.51.
    calls = []

    def step(tokens, cache):
        calls.append(1)
        return toy.ops.take(table, cache, axis=0), cache + 1

    found = generation.beam_search(
        step,
        [0],
        np.zeros(1, "int32"),
        num_beams=1,
        max_tokens=10,
        length_penalty=alpha,
        stop_tokens=(0,),
    )
    assert len(calls) == steps
    assert int(found.lengths[0, 0]) == 1


# Rows and dtypes


def test_the_best_hypothesis_alone_has_the_shapes_of_greedy():
    table, options = toy.random_table(), {"max_tokens": toy.LENGTH, "stop_tokens": (0, 2)}
    one, best = (
        toy.toy("beam_search", table, toy.TOKENS, num_beams=3, num_return=n, **options)
        for n in (1, None)
    )
    for some, alone in zip(one, best, strict=True):
        np.testing.assert_array_equal(some[:, 0], alone)
    greedy = toy.toy("greedy", table, toy.TOKENS, **options)
    assert [a.shape for a in best] == [a.shape for a in greedy] == [(3, 7), (3,), (3, 7), (3,)]
    assert [a.dtype for a in best] == [a.dtype for a in greedy]


@pytest.mark.parametrize("method", toy.WAYS)
def test_no_rows_give_none(method):
    options = {"max_tokens": 4, "stop_tokens": (2,), **toy.WAYS[method]}
    step, none = toy.of_table(toy.random_table(5)), np.zeros(0, "int32")
    found = getattr(generation, method)(step, none, np.zeros((0, 3), "float32"), **options)
    assert [tuple(array.shape) for array in found] == [(0, 4), (0,), (0, 4), (0,)]


METHODS = {
    "greedy": {"max_tokens": toy.LENGTH, "stop_tokens": (0, 2)},
    "beam_search": {
        "num_beams": 4,
        "num_return": 4,
        "max_tokens": toy.LENGTH,
        "length_penalty": 0.6,
        "stop_tokens": (0, 2),
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_logits_are_summed_in_float32(method):
    table = toy.ops.cast(toy.random_table(scale=4), "bfloat16")
    exact = toy.numpy(toy.ops.cast(table, "float32"))
    half, full = (toy.toy(method, array, toy.TOKENS, **METHODS[method]) for array in (table, exact))
    assert half.log_probabilities.dtype == half.scores.dtype == "float32"
    for one, other in zip(half, full, strict=True):
        np.testing.assert_array_equal(one, other)
