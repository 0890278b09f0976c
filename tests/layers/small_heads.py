"""Grouped heads, and the definition of their attention."""

import numpy as np

from keras_attention import ops
from tests.arrays import random

B, T, S, H, G, K, V, D = 2, 3, 5, 4, 2, 4, 6, 8


def randomize(layer, *shapes):
    """The layer, built, with random values for all weights, so that biases and scales count."""
    layer.build(*shapes)
    for seed, variable in enumerate(layer.trainable_variables):
        variable.assign(random(*variable.shape, seed=seed) / 2 + ("scale" in variable.name))
    return layer


def arrays(groups=G):
    return (
        2 * random(B, T, H, K, seed=1),
        random(B, S, groups, K, seed=2),
        random(B, S, groups, V, seed=3),
    )


def in_full(array):
    """Each key head once for every query head of its group, which are adjacent."""
    return np.repeat(array, H // array.shape[2], axis=2)


def mask():
    allowed = np.random.default_rng(4).random((B, H, T, S)) < 0.6
    allowed[0, 1, 2] = allowed[1] = False
    return allowed


def attend(**given):
    return lambda query, key, value: ops.attend(
        query, key, value, return_attention_scores=True, **given
    )


def heads_of(layer, x, name):
    """Heads (B, T, heads, features) that a projection makes, in float64."""
    kernel, bias = (np.asarray(w, "float64") for w in getattr(layer, f"{name}_dense").get_weights())
    size = layer.value_dim if name == "value" else layer.key_dim
    return (x @ kernel.reshape(x.shape[-1], -1) + bias.ravel()).reshape(*x.shape[:2], -1, size)
