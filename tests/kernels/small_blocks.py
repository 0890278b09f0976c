"""Problems of unequal lengths, and a check of a kernel and its gradients against the reference."""

import keras
import numpy as np

from keras_attention.spec import PositionBias
from tests import problems
from tests.arrays import random
from tests.gradients import gradients

B, T, S, H, K, V = 2, 23, 31, 4, 8, 6


def tensor(array):
    return keras.ops.convert_to_tensor(array)


def some(*shape, share=0.5):
    return np.random.default_rng(9).random(shape) < share


distance = PositionBias(
    lambda i, j: -0.1 * keras.ops.cast(keras.ops.abs(i - j), "float32"), by_distance=True
)


EMPTY = some(B, H, T, S, share=0.1)
EMPTY[1] = False
SEGMENTS = tuple(np.sort(some(B, n).astype("int32")) for n in (T, S))
SHAW = {"relative_keys": random(H, 7, K, seed=4), "relative_values": random(1, 7, V, seed=5)}


def check(kernel, groups, learned, given, lengths=(T, S), size=V):
    queries, keys = lengths
    given = {
        name: tuple(map(tensor, x)) if name == "segment_ids" else x for name, x in given.items()
    }
    arrays = [
        random(B, queries, H, K, seed=1),
        random(B, keys, groups, K, seed=2),
        random(B, keys, groups, size, seed=3),
        *learned.values(),
    ]
    weights = tensor(random(B, queries, H, size, seed=6))

    def answers(name):
        def attend(query, key, value, *others):
            named = dict(zip(learned, others, strict=True))
            return problems.attend(query, key, value, kernel=name, **named, **given).output

        output = keras.ops.convert_to_numpy(attend(*map(tensor, arrays)))
        return [output, *gradients(lambda *x: keras.ops.sum(attend(*x) * weights), arrays)]

    for found, expected in zip(answers(kernel), answers("reference"), strict=True):
        assert np.abs(expected).max() > 0.01 or 1 in lengths
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)
