"""Built-in scores as tests make them, and inputs for them."""

import numpy as np

from keras_attention import scores
from tests import definition
from tests.arrays import numpy, random

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8


def by_definition(query, key, score, scale=None, matrix=None, weights=None):
    """Scores (B, H, T, S), pair by pair."""
    query, key = query.astype("float64"), key.astype("float64")
    table = np.zeros((len(query), query.shape[2], query.shape[1], key.shape[1]))
    for b, h, t, s in np.ndindex(table.shape):
        table[b, h, t, s] = definition.pair_score(
            query[b, t, h],
            key[b, s, h],
            score,
            scale,
            None if matrix is None else matrix[h],
            definition.of_head(weights, h),
            s,
        )
    return table


# What a score is made with where its name alone does not make one.
ARGUMENTS = {"reduced_rank": {"rank": 3}, "location": {"max_length": S + 2}}


def make(name, **kwargs):
    return scores.BUILTIN[name](**{**ARGUMENTS.get(name, {}), **kwargs})


def named_weights(score, heads=1):
    """A score's weights for `definition.attend`, with an axis of `heads` in front."""
    found = {weight.name: numpy(weight).astype("float64") for weight in score.weights}
    for name, array in found.items():
        found[name] = np.repeat(array, heads // len(array), axis=0) if heads > 1 else array
    if isinstance(score, scores.General):
        return {"matrix": found["kernel"]}
    return {"weights": found} if found else {}


def fill(score, seed=20):
    """Gives a built score weights that no two of are alike, biases included."""
    score.set_weights(
        [random(*weight.shape, seed=seed + n) / 2 for n, weight in enumerate(score.weights)]
    )


QUERY, KEY = random(B, T, H, K, seed=1), random(B, S, H, K, seed=2)


# Arguments, and sizes of query and key.
LEARNED = {
    "general": ("general", {}, 3),
    "reduced_rank": ("reduced_rank", {}, 3),
    "reduced_rank of one": ("reduced_rank", {"rank": 1}, K),
    "additive": ("additive", {}, 3),
    "additive of 5": ("additive", {"units": 5}, K),
    "additive without bias": ("additive", {"units": 5, "use_bias": False}, K),
    "additive, normalized": ("additive", {"units": 6, "normalize": True}, 3),
    "concat": ("concat", {}, K),
    "concat of 5": ("concat", {"units": 5}, 3),
    "location": ("location", {}, 3),
    "location of as many": ("location", {"max_length": S}, K),
    "key_only": ("key_only", {}, 3),
    "key_only of 5": ("key_only", {"units": 5}, 3),
    "key_only without bias": ("key_only", {"use_bias": False}, K),
}


# One case of each score, where the arguments make no difference to what is tested.
ONE_EACH = (
    "general",
    "reduced_rank",
    "additive, normalized",
    "concat of 5",
    "location",
    "key_only of 5",
)


def learned(case):
    """A score of `LEARNED`, built and filled, its name, and a key for it."""
    name, arguments, size = LEARNED[case]
    score, key = make(name, **arguments), random(B, S, H, size, seed=3)
    score.build(QUERY.shape, key.shape)
    fill(score)
    return score, name, key


UNEQUAL = sorted({name for name, _, _ in LEARNED.values()})
