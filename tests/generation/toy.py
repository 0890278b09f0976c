"""A toy model to generate with, and what the tests of generation share."""

import functools

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


def toy_start(tokens):
    """A cache and a memory, in which rows differ."""
    rows = len(tokens)
    cache = {"state": np.arange(rows, dtype="int32"), "seen": (np.zeros((rows, 2), "int32"), None)}
    return cache, {"offset": (5 * np.arange(rows)).astype("int32"), "mask": None}


def log_probabilities(table, state):
    logits = table[state].astype("float64")
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


@functools.cache
def program(method, **options):
    def run(table, tokens, cache, memory, prompt=None):
        given = options if prompt is None else {**options, "prompt": prompt}
        return getattr(generation, method)(
            toy_step(table), tokens, cache, memory, pad_token=PAD, **given
        )

    # JAX would compile its loop in each call, and TensorFlow take long for each operation.
    return compiled.program(run)


def toy(method, table, tokens, prompt=None, **options):
    """What a way of generating gives with the toy model, as NumPy arrays."""
    arrays = (table, np.array(tokens, "int32"), *toy_start(tokens), prompt)
    arrays = keras.tree.map_structure(
        lambda leaf: None if leaf is None else ops.convert_to_tensor(leaf), arrays
    )
    return generation.Generated(*numpy(tuple(program(method, **options)(*arrays))))


def constrained(logits, text, t, rules, max_tokens, stop_tokens):
    """The logits of a step, of a text as a list, by what `Constraints` says."""
    logits = logits.astype("float64")
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
    for at, token in forced(rules, max_tokens).items():
        if t == at:
            logits = np.where(np.arange(len(logits)) == token, 0.0, -np.inf)
    return logits


def forced(rules, max_tokens):
    """Forced tokens by their steps."""
    found = {0: rules.forced_first_token}
    if rules.forced_last_token is not None:
        found[max_tokens - 1] = rules.forced_last_token
    return {at: token for at, token in found.items() if token is not None}


def greedy_by_lists(table, token, row, max_tokens, stop_tokens, rules, prompt=()):
    """Tokens after one token, and their log-probabilities; rules look at a prompt too."""
    state, found, gains = row, [], []
    while len(found) < max_tokens and (not found or found[-1] not in stop_tokens):
        state, t = next_state(state, token, 5 * row), len(found)
        text = [*prompt, *found]
        allowed = constrained(table[state], text, t, rules, max_tokens, stop_tokens)
        token = int(np.argmax(allowed))
        certain = t in forced(rules, max_tokens)
        gains.append(0.0 if certain else log_probabilities(table, state)[token])
        found.append(token)
    return found, gains


def padded(values, length, value):
    return np.array([*values, *[value] * (length - len(values))])


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


def fixed_logits(logits):
    """A model that always gives these logits."""

    def step(tokens, cache):
        return ops.broadcast_to(logits, (tokens.shape[0], len(logits))), cache

    return step
