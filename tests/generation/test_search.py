"""Greedy and beam search, with constraints: against loops over lists in float64."""

import json

import keras
import numpy as np
import pytest

from keras_attention import generation
from keras_attention.generation import Constraints, LengthDecay, Penalty, Rule
from tests.generation import toy

VOCABULARY, LENGTH, STOPS = 9, 8, (0,)


class NotTwice(Rule):
    """Forbids the last token, by the text."""

    def __call__(self, logits, text):
        last = toy.ops.one_hot(text.last(1)[:, 0], logits.shape[1]) > 0
        return toy.ops.where(last, -np.inf, logits)


class NotAgain(Rule):
    """The same by a state: the last generated token, and −1 before there is one."""

    reads_prompt = False

    def initial_state(self, rows):
        return {"last": toy.ops.full((rows,), -1, dtype="int32")}

    def __call__(self, logits, text):
        tokens = toy.ops.arange(logits.shape[1], dtype="int32")
        return toy.ops.where(tokens == text.state["last"][:, None], -np.inf, logits)

    def next_state(self, state, tokens):
        return {"last": tokens}


PENALTY = Penalty(1.3, 0.4, -0.5, window=3, prompt=True)
# Two rows, the second with padding. The last column is where a text goes on.
PROMPT = np.array([[4, 2, 5, 1], [-1, -1, 3, 5]], "int32")
WORDS = {(4,): 2.0, (1, 3): 3.0, (5, 1): 9.0, (6, 7, 2): -2.0}
RULES = {
    "none": Constraints(),
    "tokens": Constraints(
        suppress_tokens=(3,), begin_suppress_tokens=(1, 2), bad_words=[(6,)], min_tokens=4
    ),
    "first": Constraints(begin_suppress_tokens=(1, 2, 5), forced_first_token=6),
    "last": Constraints(forced_first_token=7, forced_last_token=0, min_tokens=LENGTH),
    "words": Constraints(bad_words=[(1, 2), (2, 2), (5, 1, 7)], sequence_bias=WORDS),
    "repetition": Constraints(repetition_penalty=1.7),
    "once": Constraints(no_repeat_ngram_size=1, min_tokens=3),
    "n-grams": Constraints(no_repeat_ngram_size=2, repetition_penalty=0.4),
    "few": Constraints(suppress_tokens=tuple(range(2, VOCABULARY))),
    "penalty": [Penalty(presence=1.5, frequency=2.5), Constraints(min_tokens=6)],
    "window": [Constraints(suppress_tokens=(1,)), PENALTY],
    "decay": [LengthDecay(0, 3.0), Constraints(begin_suppress_tokens=(3,))],
    "state": [Constraints(sequence_bias={(7,): 9.0}), NotAgain()],
    "all": Constraints((3,), (1,), 6, 0, [(1, 2), (8,)], WORDS, 5, 1.2, 3),
}


def text_of(row):
    return [int(token) for token in PROMPT[row] if token >= 0]


def run(method, table, rules, **options):
    """The result as NumPy arrays."""
    options |= {"max_tokens": LENGTH, "stop_tokens": STOPS, "constraints": rules}
    return toy.toy(method, table, PROMPT[:, -1], PROMPT, **options)


# The best token of each step


def greedy_by_lists(table, rules):
    texts = map(text_of, range(2))
    return [
        toy.greedy_by_lists(table, text[-1], row, LENGTH, STOPS, rules, text)
        for row, text in enumerate(texts)
    ]


GREEDY = [(name, "greedy", {}) for name in RULES] + [
    ("once", "beam_search", {"num_beams": 1, "num_return": None, "length_penalty": 0.0}),
    ("all", "sample", {"top_k": 1, "seed": 0}),
    # Temperatures whose quotients are not finite.
    ("none", "sample", {"temperature": 1e-37, "top_p": 0.5, "seed": 0}),
    ("none", "sample", {"temperature": 1e-60, "top_p": 0.5, "seed": 0}),
]


@pytest.mark.parametrize(("name", "method", "options"), GREEDY)
def test_the_best_tokens_are_those_of_lists(name, method, options):
    table = toy.random_table(VOCABULARY, seed=3)
    expected = greedy_by_lists(table, RULES[name])
    toy.assert_found(run(method, table, RULES[name], **options), expected)
    assert name == "none" or greedy_by_lists(table, RULES["none"]) != expected


@pytest.mark.parametrize("penalty", [1.3, 0.5])
def test_the_repetition_penalty_of_samples_is_of_what_they_have(penalty):
    options = {"top_k": 1, "repetition_penalty": penalty, "stop_tokens": (2,), "seed": 0}
    rules = Constraints(repetition_penalty=penalty)
    for seed in range(2):
        table = toy.random_table(seed=seed, scale=1.0)
        found = toy.toy("sample", table, toy.TOKENS, max_tokens=toy.LENGTH, **options)
        expected = [
            toy.greedy_by_lists(table, token, row, toy.LENGTH, (2,), rules)
            for row, token in enumerate(toy.TOKENS)
        ]
        toy.assert_found(found, expected)


@pytest.mark.skipif(toy.ON_JAX, reason="JAX traces a loop once")
@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_the_loop_ends_when_every_row_has(method):
    table = np.full((toy.STATES, 4), -9.0, "float32")
    table[:, 2] = 9.0
    calls, (cache, memory) = [], toy.toy_start([0, 1])
    options = {"max_tokens": 50, "stop_tokens": (2,), **toy.WAYS[method]}
    step = toy.toy_step(toy.ops.convert_to_tensor(table), calls)
    getattr(generation, method)(step, [0, 1], cache, memory, **options)
    assert calls == [(2,)]


# Beam search


def beams_by_lists(table, row, rules, num_beams, alpha, rule, stopping):
    """Hypotheses (score, tokens, log-probabilities), best first."""

    def lp(n):
        return (n if rule == "power" else (5 + n) / 6) ** alpha

    prompt = text_of(row)
    start = toy.next_state(row, prompt[-1], 5 * row)
    live, found = [(0.0, (), (), start)], []
    for t in range(LENGTH):
        ranked = []
        for total, tokens, log_probs, state in live:
            gains = toy.log_probabilities(table, state)
            gains = toy.constrained(gains, prompt + list(tokens), t, rules, LENGTH, STOPS)
            for new in map(int, np.flatnonzero(gains > -np.inf)):
                after = toy.next_state(state, new, 5 * row)
                more = (*tokens, new), (*log_probs, gains[new])
                ranked.append((total + gains[new], *more, after))
        ranked.sort(key=lambda beam: -beam[0])
        found += [
            (total / lp(t + 1), tokens, log_probs)
            for total, tokens, log_probs, _ in ranked[:num_beams]
            if tokens[-1] in STOPS or t + 1 == LENGTH
        ]
        found = sorted(found, key=lambda hypothesis: -hypothesis[0])[:num_beams]
        live = [beam for beam in ranked if beam[1][-1] not in STOPS][:num_beams]
        full, best = len(found) == num_beams, live[0][0] / lp(t + 1) if live else -np.inf
        done = stopping == "first" or (stopping == "estimate" and full and best <= found[-1][0])
        if not live or (full and done):
            break
    return found


# Rules, options of the search, how many hypotheses it returns, and the seed of the model.
SEARCHES = [
    ("all", 3, 0.6, "wu", "exact", 2, 0),
    ("words", 4, 1.0, "power", "estimate", 2, 1),
    ("repetition", 3, 2.0, "power", "first", 3, 2),
    ("tokens", 2, 0.0, "power", "exact", 1, 0),
    # More beams than there are texts, which are 9: exhaustive search.
    ("few", 12, 0.7, "wu", "exact", 12, 0),
    ("window", 3, 0.6, "wu", "exact", 2, 3),
    ("state", 3, 0.6, "wu", "exact", 2, 3),
    ("none", 2, 2.0, "power", "exact", None, 19),
    ("none", 2, 2.0, "power", "estimate", None, 19),
    ("none", 2, 2.0, "power", "first", None, 19),
]


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_beam_search_is_the_search_over_lists(search):
    name, num_beams, alpha, rule, stopping, num_return, seed = search
    table = toy.random_table(VOCABULARY, seed, scale=1.0)
    found = run(
        "beam_search",
        table,
        RULES[name],
        num_beams=num_beams,
        num_return=num_return,
        length_penalty=alpha,
        length_rule=rule,
        stopping=stopping,
    )
    expected = [beams_by_lists(table, row, RULES[name], *search[1:5]) for row in range(2)]
    toy.assert_found(found, expected)


def test_ways_to_stop_differ():
    """A hypothesis that ends later may be better than those that end a search."""
    table, ways = toy.random_table(VOCABULARY, seed=19, scale=1.0), [x[1:5] for x in SEARCHES[-3:]]
    assert len({beams_by_lists(table, 0, RULES["none"], *way)[0][1] for way in ways}) == 3


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

    options = {"num_beams": 1, "max_tokens": 10, "length_penalty": alpha, "stop_tokens": (0,)}
    found = generation.beam_search(step, [0], np.zeros(1, "int32"), **options)
    assert len(calls) == steps
    assert int(found.lengths[0, 0]) == 1


# Rows, dtypes and constraints, whatever the way


@pytest.mark.parametrize("method", toy.WAYS)
def test_no_rows_give_none(method):
    options = {"max_tokens": 4, "stop_tokens": (2,), **toy.WAYS[method]}
    step, none = toy.of_table(toy.random_table(5)), np.zeros(0, "int32")
    found = getattr(generation, method)(step, none, np.zeros((0, 3), "float32"), **options)
    assert [tuple(array.shape) for array in found] == [(0, 4), (0,), (0, 4), (0,)]


@pytest.mark.parametrize("method", ["greedy", "beam_search"])
def test_half_precision_logits_are_summed_in_float32(method):
    options = {"max_tokens": toy.LENGTH, "stop_tokens": (0, 2), **toy.WAYS[method]}
    table = toy.ops.cast(toy.random_table(scale=4), "bfloat16")
    exact = toy.numpy(toy.ops.cast(table, "float32"))
    half, full = (toy.toy(method, array, toy.TOKENS, **options) for array in (table, exact))
    assert half.log_probabilities.dtype == half.scores.dtype == "float32"
    for one, other in zip(half, full, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_a_row_without_an_allowed_token_ends(method):
    rules = Constraints(no_repeat_ngram_size=1, suppress_tokens=tuple(range(6)))
    options = {"seed": 1} if method == "sample" else {}
    found = run(method, toy.random_table(VOCABULARY, seed=0), rules, **options)
    assert found.lengths.tolist() == [3, 3]
    assert (found.tokens[:, 3:] == toy.PAD).all() and (found.scores == -np.inf).all()


def test_nan_is_not_lost_behind_a_forced_token():
    def step(tokens, cache):
        return toy.ops.full((1, 4), float("nan")), cache

    rules = Constraints(forced_first_token=2)
    with pytest.raises(ValueError, match="without NaN"):
        generation.greedy(step, [0], (), max_tokens=1, constraints=rules)


def test_a_rule_by_a_state_is_the_rule_by_the_text():
    """In all ways; of a text that begins where no token stands before it."""
    table, prompt = toy.random_table(VOCABULARY, seed=3), np.full((2, 1), VOCABULARY - 1, "int32")
    for method, options in toy.WAYS.items():
        options = {**options, "max_tokens": LENGTH, "stop_tokens": ((4, 2), 0)}
        found = [
            toy.toy(method, table, prompt[:, 0], prompt, constraints=rules, **options)
            for rules in (NotAgain(), NotTwice() + Constraints(), None)
        ]
        # The first token after the prompt may be its last by the one, and not by the other.
        assert (found[0].tokens[:, 0] != VOCABULARY - 1).all()
        for one, other in zip(found[0], found[1], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        assert (found[0].tokens != found[2].tokens).any()


@pytest.mark.parametrize("method", toy.WAYS)
def test_settings_by_row_are_those_of_the_row_alone(method):
    """How many tokens, the first one, and of samples what each is drawn with."""
    table, rows = toy.random_table(VOCABULARY, seed=3), range(2)
    by_row = {"max_tokens": [3, 6]}
    if method == "sample":
        by_row |= {"temperature": [0.3, 2.0], "top_p": [0.9, 0.5], "seed": [5, 8]}
        by_row |= {"min_p": [0.01, 0.2], "typical_p": [0.95, 0.4]}
    given = {**toy.WAYS[method], **by_row, "constraints": Constraints(forced_first_token=[4, 7])}
    found = toy.toy(method, table, [1, 1], **given)
    for row in rows:
        own = {name: value[row] for name, value in by_row.items()}
        own["constraints"] = Constraints(forced_first_token=[4, 7][row])
        alone = toy.toy(method, table, [1], rows=[row], **{**toy.WAYS[method], **own})
        most = own["max_tokens"]
        np.testing.assert_array_equal(found.tokens[row, :most], alone.tokens[0])
        assert (found.tokens[row, most:] == toy.PAD).all() and found.lengths[row] == most
        np.testing.assert_allclose(found.scores[row], alone.scores[0], rtol=1e-5)


def test_rules_are_saved():
    for rules in RULES.values():
        for rule in rules if isinstance(rules, list) else [rules]:
            config = json.loads(json.dumps(keras.saving.serialize_keras_object(rule)))
            if isinstance(rule, NotAgain):
                continue  # Of no package: Keras asks for its class.
            assert keras.saving.deserialize_keras_object(config) == rule


def test_equal_constraints_are_one():
    assert RULES["all"] == Constraints(
        [3], np.array([1]), 6, 0, ((1, 2), [8]), dict(WORDS), 5, 1.2, 3
    )
    same = Constraints((3,), (1, 2), bad_words=[(6,)], min_tokens=4)
    assert hash(same) == hash(RULES["tokens"]) and same != RULES["all"]
