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


def greedy_by_lists(table, token, row, max_tokens, stop_tokens, penalty=1.0):
    state, found, gains = row, [], []
    while len(found) < max_tokens and (not found or found[-1] not in stop_tokens):
        state = next_state(state, token, 5 * row)
        logits = table[state].astype("float64")
        for seen in set(found):
            logits[seen] = logits[seen] / penalty if logits[seen] > 0 else logits[seen] * penalty
        token = int(np.argmax(logits))
        gains.append(log_probabilities(table, state)[token])
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
