"""Problems for the kernel of windows and rates."""

import keras
import numpy as np

from keras_attention import positions
from keras_attention.kernels.tiles import strategies
from keras_attention.patterns import (
    Axial,
    Block,
    Causal,
    Dilated,
    GridWindow,
    Neighborhood,
    Prefix,
    SlidingWindow,
    Strided,
)
from keras_attention.spec import PositionBias
from tests.problems import inputs, random, relative_bias, some

B, T, H, K, V = 2, 50, 4, 8, 6


def short_sequences():
    """A context in which short sequences take the ways of long ones."""
    return strategies.using(window=5, shortest=20)


def segments(batch=B, queries=T, keys=T):
    """Numbers of a few runs, for all rows of queries and for one of keys."""
    runs = np.arange(max(queries, keys)) // 9 % 2
    return tuple(
        keras.ops.convert_to_tensor(np.tile(runs[:n], (rows, 1)).astype("int32"))
        for rows, n in ((batch, queries), (1, keys))
    )


def alibi():
    return positions.ALiBi().bias_between(H)


def fold_masks():
    return [some(B, 1, 1, T), some(1, 1, T, 1, rate=0.8), some(1, H, 1, T, rate=0.8)]


# With enough scores for a kernel of many.
GRID, N = (8, 12), 96
ON_GRID = {"queries": N, "keys": N}


def grid_bias(grid=GRID, prefix=0):
    position = positions.GridRelativeBias(grid, 4, prefix)
    position.build((B, N, H, K), (B, N, H, K))
    return position.bias_between(H)


def tables(heads=H):
    return {"relative_keys": random(heads, 7, K), "relative_values": random(1, 7, V)}


# Name: arrays beside query, key and value; all other arguments; sizes that are not the usual.
CASES = {
    "window": lambda: ({}, {"pattern": SlidingWindow(3, 5)}, {"groups": H}),
    "window of itself": lambda: ({}, {"pattern": SlidingWindow(0, 0)}, {}),
    "causal window": lambda: (
        {"bias": random(B, H, 1, T), "sink": random(H)},
        {"pattern": SlidingWindow(3, 5) & Causal(), "mask": fold_masks()},
        {},
    ),
    "causal window of one group": lambda: ({}, {"pattern": SlidingWindow(4, 0)}, {"groups": 1}),
    "few queries": lambda: (
        {},
        {"pattern": SlidingWindow(2, 9), "offset": 13, "segment_ids": segments(B, 43, T)},
        {"queries": 43},
    ),
    "few keys": lambda: (
        {"bias": random(1, 1, T, 1)},
        {"pattern": SlidingWindow(2, 9), "offset": -5},
        {"keys": 39},
    ),
    "many keys": lambda: ({}, {"pattern": SlidingWindow(2, 3), "offset": 70}, {"keys": 90}),
    "beyond the keys": lambda: (
        {"sink": random(H)},
        {"pattern": SlidingWindow(2, 3), "offset": 100},
        {},
    ),
    "before the keys": lambda: (
        {"sink": random(H)},
        {"pattern": SlidingWindow(2, 3), "offset": -100},
        {},
    ),
    "nothing allowed": lambda: (
        {},
        {"pattern": SlidingWindow(2, 3), "mask": np.zeros((B, 1, 1, 1), bool)},
        {},
    ),
    "few queries of many keys": lambda: (
        {"bias": random(B, H, 1, 90)},
        {"pattern": SlidingWindow(20, 0), "offset": 80, "mask": some(B, 1, 1, 90)},
        {"queries": 2, "keys": 90},
    ),
    "biases of heads": lambda: (
        {"bias": random(B, H, 1, 1), "more_bias": random(1, H, T, 1)},
        {"pattern": SlidingWindow(6, 1), "logit_soft_cap": 2.0, "mask": some(B, H, 1, 1)},
        {},
    ),
    "block": lambda: ({}, {"pattern": Block(7), "between": alibi()}, {}),
    "block with a table": lambda: (
        {"table": random(8, H)},
        {"pattern": Block(7) & Causal(), "between": relative_bias()},
        {},
    ),
    "alibi": lambda: ({}, {"pattern": SlidingWindow(5, 0), "between": alibi(), "offset": 3}, {}),
    "relative bias": lambda: (
        {"table": random(8, H)},
        {"pattern": SlidingWindow(5, 2), "between": relative_bias(), "mask": some(B, 1, 1, T)},
        {},
    ),
    "not by distance": lambda: (
        {},
        {
            "pattern": SlidingWindow(4, 2),
            "between": PositionBias(
                lambda i, j: 0.1 * keras.ops.cast(keras.ops.mod(i * j, 7), "float32")
            ),
        },
        {},
    ),
    "dilated": lambda: ({}, {"pattern": Dilated(3), "between": alibi()}, {}),
    "dilated causal": lambda: (
        {"table": random(8, H), "bias": random(1, 1, 1, T), "sink": random(H)},
        {"pattern": Dilated(4) & Causal(), "between": relative_bias(), "segment_ids": segments()},
        {},
    ),
    "dilated window": lambda: (
        {},
        {
            "pattern": Dilated(3) & SlidingWindow(6, 3),
            "mask": fold_masks(),
            "segment_ids": segments(),
        },
        {},
    ),
    "strided": lambda: ({"bias": random(B, 1, 1, T)}, {"pattern": Strided(5)}, {}),
    "strided causal": lambda: (
        {"sink": random(H)},
        {"pattern": Strided(5) & Causal(), "mask": some(B, 1, 1, T)},
        {},
    ),
    "grid window": lambda: (
        {"table": random(49, H), "bias": random(1, H, 1, N)},
        {"pattern": GridWindow(GRID, 4, 2), "between": grid_bias(), "mask": some(B, 1, 1, N)},
        ON_GRID,
    ),
    "uneven grid window": lambda: (
        {"sink": random(H), "bias": random(B, 1, 98, 1)},
        {
            "pattern": GridWindow((7, 14), (3, 4), (1, 2)) & Causal(),
            "between": alibi(),
            "segment_ids": segments(B, 98, 98),
        },
        {"queries": 98, "keys": 98},
    ),
    "neighborhood": lambda: (
        {"table": random(52, H), "bias": random(1, H, N + 1, 1)},
        {
            "pattern": Neighborhood((24, 4), 3, prefix=1),
            "between": grid_bias((24, 4), 1),
            "mask": [some(B, 1, 1, N + 1), some(1, 1, N + 1, 1, rate=0.8)],
            "segment_ids": segments(B, N + 1, N + 1),
        },
        {"queries": N + 1, "keys": N + 1, "groups": H},
    ),
    "axial": lambda: (
        {"table": random(8, H), "sink": random(H)},
        {"pattern": Axial(GRID, prefix=2), "between": relative_bias()},
        {"queries": N + 2, "keys": N + 2},
    ),
    "shaw in a window": lambda: (tables(), {"pattern": SlidingWindow(2, 2)}, {}),
    "shaw": lambda: (tables(), {"mask": some(B, 1, 1, T)}, {"groups": H}),
    "shaw causal": lambda: (tables(1), {"pattern": Causal(), "offset": 5}, {"groups": H}),
    "shaw prefix": lambda: (
        {**tables(), "sink": random(H)},
        {"pattern": Prefix(10) | Causal()},
        {"keys": 41, "groups": H},
    ),
    "shaw wide": lambda: (tables(), {"pattern": SlidingWindow(9, 2), "offset": 5}, {}),
}


def banded_problem(name):
    arrays, rest, sizes = CASES[name]()
    return {**inputs(**{"queries": T, "keys": T, **sizes}), **arrays}, rest
