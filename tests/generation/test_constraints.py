"""Constraints, rules of lengths and ways to stop: against loops over lists in float64."""

import keras
import numpy as np
import pytest

from keras_attention import generation
from keras_attention.generation import Constraints
from tests.generation import toy

VOCABULARY, LENGTH, STOPS = 9, 8, (0,)
# Two rows, the second with padding. The last column is where a text goes on.
PROMPT = np.array([[4, 2, 5, 1], [-1, -1, 3, 5]], "int32")
WORDS = {(4,): 2.0, (1, 3): 3.0, (5, 1): 9.0, (6, 7, 2): -2.0}
RULES = {
    "tokens": Constraints(
        suppress_tokens=(3,), begin_suppress_tokens=(1, 2), bad_words=[(6,)], min_tokens=4
    ),
    "first": Constraints(begin_suppress_tokens=(1, 2, 5), forced_first_token=6),
    "last": Constraints(forced_first_token=7, forced_last_token=0, min_tokens=LENGTH),
    "words": Constraints(bad_words=[(1, 2), (2, 2), (5, 1, 7)], sequence_bias=WORDS),
    "repetition": Constraints(repetition_penalty=1.7),
    "once": Constraints(no_repeat_ngram_size=1, min_tokens=3),
    "n-grams": Constraints(no_repeat_ngram_size=2, repetition_penalty=0.4),
    "all": Constraints((3,), (1,), 6, 0, [(1, 2), (8,)], WORDS, 5, 1.2, 3),
}


def text_of(row):
    return [int(token) for token in PROMPT[row] if token >= 0]


def greedy_by_lists(table, row, rules):
    text = text_of(row)
    return toy.greedy_by_lists(table, text[-1], row, LENGTH, STOPS, rules, text)


def beams_by_lists(table, row, rules, max_tokens, num_beams, alpha, rule, stopping):
    """Hypotheses [(score, tokens)], best first."""

    def lp(n):
        return (n if rule == "power" else (5 + n) / 6) ** alpha

    prompt = text_of(row)
    live, found, done = [(0.0, (), toy.next_state(row, prompt[-1], 5 * row))], [], False
    for t in range(max_tokens):
        ranked = []
        for total, tokens, state in live:
            log_probs = toy.log_probabilities(table, state)
            text = prompt + list(tokens)
            gains = toy.constrained(log_probs, text, t, rules, max_tokens, STOPS)
            for new in np.flatnonzero(gains > -np.inf):
                after = toy.next_state(state, int(new), 5 * row)
                ranked.append((total + gains[new], (*tokens, int(new)), after))
        ranked.sort(key=lambda beam: -beam[0])
        found += [
            (total / lp(t + 1), tokens)
            for total, tokens, _ in ranked[:num_beams]
            if tokens[-1] in STOPS or t + 1 == max_tokens
        ]
        found = sorted(found, key=lambda hypothesis: -hypothesis[0])[:num_beams]
        live = [beam for beam in ranked if beam[1][-1] not in STOPS][:num_beams]
        if len(found) == num_beams:
            best = live[0][0] / lp(t + 1) if live else -np.inf
            done = stopping == "first" or (stopping == "estimate" and best <= found[-1][0])
        if done or not live:
            break
    return found


def run(method, table, rules, **options):
    """The result as NumPy arrays."""
    options |= {"max_tokens": LENGTH, "stop_tokens": STOPS, "constraints": rules}
    return toy.toy(method, table, PROMPT[:, -1], PROMPT, **options)


@pytest.mark.parametrize("name", RULES)
def test_greedy_is_the_loop_over_lists(name):
    rules = RULES[name]
    table = toy.random_table(VOCABULARY, seed=3)
    found = run("greedy", table, rules)
    for row in range(2):
        expected, log_probs = greedy_by_lists(table, row, rules)
        np.testing.assert_array_equal(found.tokens[row], toy.padded(expected, LENGTH, toy.PAD))
        np.testing.assert_allclose(
            found.log_probabilities[row], toy.padded(log_probs, LENGTH, 0), rtol=1e-4, atol=1e-5
        )
    both = ([greedy_by_lists(table, row, x) for row in range(2)] for x in (Constraints(), rules))
    assert next(both) != next(both)


# Rules, and options of the search.
SEARCHES = [
    ("all", 3, 0.6, "wu", "exact"),
    ("words", 4, 1.0, "power", "estimate"),
    ("repetition", 3, 2.0, "power", "first"),
    ("tokens", 2, 0.0, "power", "exact"),
    ("last", 3, 1.5, "power", "estimate"),
    # As `greedy`.
    ("once", 1, 0.0, "wu", "exact"),
]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search[0])
def test_beam_search_is_the_search_over_lists(search):
    name, num_beams, alpha, rule, stopping = search
    for seed in range(3):
        table = toy.random_table(VOCABULARY, seed=seed, scale=1.0)
        found = run(
            "beam_search",
            table,
            RULES[name],
            num_beams=num_beams,
            num_return=min(2, num_beams),
            length_penalty=alpha,
            length_rule=rule,
            stopping=stopping,
        )
        for row in range(2):
            expected = beams_by_lists(table, row, RULES[name], LENGTH, *search[1:])
            for rank, (score, tokens) in enumerate(expected[: min(2, num_beams)]):
                np.testing.assert_array_equal(
                    found.tokens[row, rank], toy.padded(tokens, LENGTH, toy.PAD)
                )
                np.testing.assert_allclose(found.scores[row, rank], score, rtol=1e-4, atol=1e-5)


def test_ways_to_stop_differ():
    """A hypothesis that ends later may be better than those that end a search."""
    table, found = toy.random_table(VOCABULARY, seed=19, scale=1.0), {}
    for stopping in ("exact", "estimate", "first"):
        expected = beams_by_lists(table, 0, Constraints(), LENGTH, 2, 2.0, "power", stopping)
        ours = run(
            "beam_search",
            table,
            None,
            num_beams=2,
            length_penalty=2.0,
            length_rule="power",
            stopping=stopping,
        )
        found[stopping] = ours.tokens[0, 0].tolist()
        assert found[stopping] == toy.padded(expected[0][1], LENGTH, toy.PAD).tolist()
    assert len(set(map(tuple, found.values()))) == 3


def test_samples_keep_to_what_is_allowed():
    table = np.zeros((61, VOCABULARY), "float32")
    found = run("sample", table, RULES["all"], seed=1)
    for row in range(2):
        text = text_of(row)
        assert found.lengths[row] > 5
        for t, token in enumerate(found.tokens[row, : found.lengths[row]]):
            logits = toy.constrained(table[0], text, t, RULES["all"], LENGTH, STOPS)
            assert logits[token] > -np.inf
            expected = 0.0 if t in (0, LENGTH - 1) else -np.log(VOCABULARY)
            np.testing.assert_allclose(found.log_probabilities[row, t], expected, atol=1e-5)
            text.append(int(token))
    # A penalty of nearly all of it: no token comes twice.
    penalty = Constraints(repetition_penalty=1e6, suppress_tokens=STOPS)
    found = run("sample", table - 1.0, penalty, seed=1, temperature=0.1)
    for row in range(2):
        allowed = set(range(VOCABULARY)) - set(STOPS) - set(text_of(row))
        assert set(found.tokens[row, : len(allowed)].tolist()) == allowed


def test_a_row_without_an_allowed_token_ends():
    rules = Constraints(no_repeat_ngram_size=1, suppress_tokens=tuple(range(6)))
    table = toy.random_table(VOCABULARY, seed=0)
    for method, options in (("greedy", {}), ("sample", {"seed": 1})):
        found = run(method, table, rules, **options)
        assert found.lengths.tolist() == [3, 3]
        assert (found.tokens[:, 3:] == toy.PAD).all() and (found.scores == -np.inf).all()


def test_nan_is_not_lost_behind_a_forced_token():
    def step(tokens, cache):
        return toy.ops.full((1, 4), float("nan")), cache

    with pytest.raises(ValueError, match="without NaN"):
        generation.greedy(
            step, [0], (), max_tokens=1, constraints=Constraints(forced_first_token=2)
        )


def test_compiled_programs_have_the_prompt_as_an_argument():
    model = keras.Sequential([keras.layers.Embedding(VOCABULARY, VOCABULARY)])
    model.build((None,))
    model.set_weights([toy.random_table(VOCABULARY)[:VOCABULARY]])
    rules = Constraints(repetition_penalty=1.5, no_repeat_ngram_size=2, bad_words=[(1, 2)])

    def write(prompt):
        return generation.greedy(
            lambda tokens, cache: (model(tokens), cache),
            prompt[:, -1],
            (),
            max_tokens=6,
            constraints=rules,
            prompt=prompt,
        )

    program = generation.compiled(write, model)
    prompts = np.array([[1, 2, 3]]), np.array([[4, 5, 3]])
    for prompt in prompts:
        np.testing.assert_array_equal(
            toy.numpy(program(prompt).tokens), toy.numpy(write(prompt).tokens)
        )
    assert (toy.numpy(program(prompts[0]).tokens) != toy.numpy(program(prompts[1]).tokens)).any()


def test_equal_constraints_are_one():
    assert RULES["all"] == Constraints(
        [3], np.array([1]), 6, 0, ((1, 2), [8]), dict(WORDS), 5, 1.2, 3
    )
    same = Constraints((3,), (1, 2), bad_words=[(6,)], min_tokens=4)
    assert hash(same) == hash(RULES["tokens"]) and same != RULES["all"]
