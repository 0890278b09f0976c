"""A toy model to generate with, and what the tests of generation share."""

import keras
import numpy as np

from keras_attention import generation
from tests import compiled

ops = keras.ops
ON_JAX = keras.config.backend() == "jax"
STATES = 61
PAD = -1
# Most tests ask for these sizes, so that few loops must be traced.
TOKENS = [1, 5, 3]
VOCABULARY, LENGTH = 6, 7


def numpy(structure):
    return keras.tree.map_structure(
        lambda tensor: np.asarray(ops.convert_to_numpy(tensor)), structure
    )


def random_table(vocabulary=VOCABULARY, seed=0, scale=2.0):
    """Logits of each state of a toy model."""
    shape = (STATES, vocabulary)
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype("float32")


def next_state(state, token, offset):
    """The state depends on all that came before, so a wrong beam's state shows."""
    return (state * 7 + token * 3 + offset + 1) % STATES


def toy_step(table, calls=None):
    """A model whose cache is a state and the tokens it saw, and whose memory is an offset."""

    def step(tokens, cache, memory):
        if calls is not None:
            calls.append(tuple(tokens.shape))
        state = next_state(cache["state"], tokens, memory["offset"])
        seen = ops.concatenate([cache["seen"][0][:, 1:], tokens[:, None]], axis=1)
        return ops.take(table, state, axis=0), {"state": state, "seen": (seen, None)}

    return step


def toy_start(tokens, rows=None):
    """A cache and a memory, in which rows differ: the first ones, or those of these numbers."""
    rows = np.arange(len(tokens)) if rows is None else np.array(rows)
    seen = np.zeros((len(rows), 2), "int32"), None
    cache = {"state": rows.astype("int32"), "seen": seen}
    return cache, {"offset": (5 * rows).astype("int32"), "mask": None}


def log_probabilities(table, state):
    logits = table[state].astype("float64")
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def toy(method, table, tokens, prompt=None, rows=None, **options):
    """What a way of generating gives with the toy model, as NumPy arrays."""
    given = options if prompt is None else {**options, "prompt": prompt}

    def run(table, tokens, *start):
        step = toy_step(table)
        return getattr(generation, method)(step, tokens, *start, pad_token=PAD, **given)

    arrays = (table, np.array(tokens, "int32"), *toy_start(tokens, rows))
    arrays = keras.tree.map_structure(
        lambda leaf: None if leaf is None else ops.convert_to_tensor(leaf), arrays
    )
    # JAX would compile each operation.
    return generation.Generated(*numpy(tuple(compiled.quick(run)(*arrays))))


def assert_found(found, expected):
    """Compares with the texts of each row, as lists: (score, tokens, log-probabilities)."""
    tokens, lengths, gains, scores = (x if found.scores.ndim == 2 else x[:, None] for x in found)
    assert [x.dtype for x in found] == ["int32", "int32", "float32", "float32"]
    for row, rank in np.ndindex(*scores.shape):
        score, text, log_probs = [*expected[row], *[(-np.inf, (), ())] * (rank + 1)][rank]
        rest = tokens.shape[2] - len(text)
        assert lengths[row, rank] == len(text)
        assert tokens[row, rank].tolist() == [*text, *[PAD] * rest]
        np.testing.assert_allclose(scores[row, rank], score, rtol=1e-4, atol=1e-5)
        of_text = [*log_probs, *[0] * rest]
        np.testing.assert_allclose(gains[row, rank], of_text, rtol=1e-4, atol=1e-5)


def constrained(logits, text, t, rules, max_tokens, stop_tokens):
    """The logits of a step, of a text as a list, by what rules say."""
    logits = logits.astype("float64")
    if isinstance(rules, list):
        for rule in rules:
            logits = constrained(logits, text, t, rule, max_tokens, stop_tokens)
        return logits
    if isinstance(rules, generation.Penalty):
        counted = text if rules.prompt else text[len(text) - t :]
        window = len(text) if rules.window is None else rules.window
        counted = counted[max(0, len(counted) - window) :]
        for token in set(counted):
            logit = logits[token]
            logit = logit / rules.repetition if logit > 0 else logit * rules.repetition
            count = counted.count(token)
            logits[token] = logit - rules.presence - rules.frequency * count
        return logits
    if isinstance(rules, generation.LengthDecay):
        for token in stop_tokens:
            more = rules.factor ** max(0, t - rules.start) - 1
            logits[token] += abs(logits[token]) * more
        return logits
    if not isinstance(rules, generation.Constraints):
        if t:
            logits[text[-1]] = -np.inf  # The rule that forbids the last generated token.
        return logits
    for word, bias in [
        *rules.sequence_bias.items(),
        *((word, -np.inf) for word in rules.bad_words),
    ]:
        if list(word[:-1]) == text[len(text) - len(word) + 1 :]:
            logits[word[-1]] += bias
    for token in set(text):
        penalty = rules.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    n = rules.no_repeat_ngram_size
    grams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)} if n else ()
    for token in range(len(logits)):
        if n and (*text[len(text) - n + 1 :], token) in grams:
            logits[token] = -np.inf
    logits[list(rules.suppress_tokens)] = -np.inf
    if t == (rules.forced_first_token is not None):
        logits[list(rules.begin_suppress_tokens)] = -np.inf
    if t < rules.min_tokens:
        logits[list(stop_tokens)] = -np.inf
    token = forced(rules, t, max_tokens)
    if token is not None:
        logits = np.where(np.arange(len(logits)) == token, 0.0, -np.inf)
    return logits


def forced(rules, t, max_tokens):
    """The token that is forced in a step, or None."""
    if not isinstance(rules, generation.Constraints):
        return None
    return {max_tokens - 1: rules.forced_last_token, 0: rules.forced_first_token}.get(t)


def greedy_by_lists(table, token, row, max_tokens, stop_tokens, rules, prompt=()):
    """The texts (score, tokens, log-probabilities) of a row: one. Rules look at a prompt too."""
    state, found, gains = row, [], []
    while len(found) < max_tokens and (not found or found[-1] not in stop_tokens):
        state, t = next_state(state, token, 5 * row), len(found)
        text = [*prompt, *found]
        allowed = constrained(table[state], text, t, rules, max_tokens, stop_tokens)
        token = int(np.argmax(allowed))
        certain = forced(rules, t, max_tokens) is not None
        gains.append(0.0 if certain else log_probabilities(table, state)[token])
        found.append(token)
    return [(sum(gains), found, gains)]


def of_table(table):
    """A model whose next logits depend on the last token alone."""
    table = ops.convert_to_tensor(np.array(table, "float32"))

    def step(tokens, cache):
        return ops.take(table, tokens, axis=0), cache

    return step


WAYS = {
    "greedy": {},
    "sample": {"seed": 0, "top_k": 2},
    "beam_search": {"num_beams": 2, "num_return": None},
}
