"""Problems for the blockwise kernel, and the blocks that they are cut into."""

import keras
import numpy as np

from keras_attention import patterns, positions
from tests.problems import (
    B,
    H,
    K,
    S,
    T,
    Thirds,
    V,
    at_once,
    blocks_of,
    inputs,
    integers,
    random,
    relative_bias,
    rows_of,
    some,
)

# One block; several of batch, heads and queries; several of queries and keys, which fill neither.
BLOCKS = {
    "one": lambda: at_once(2**20),
    "4096": lambda: at_once(4096),
    "700": lambda: at_once(700),
    "keys": lambda: blocks_of(16, 16),
}
# JAX's arrays have one size, and queries see various numbers of keys.
if keras.backend.backend() != "jax":
    BLOCKS |= {
        "one of rows": lambda: rows_of(2**20),
        "rows": lambda: rows_of(700),
        "rows of heads": lambda: rows_of(4096),
    }


def with_empty_rows():
    mask = some(B, H, T, S, rate=0.1)
    mask[0, 0, 3] = False
    mask[0, :, 5] = False
    mask[1] = False
    return mask


RIGHT = (np.arange(S) < np.array([[S], [20]]))[:, None, None]
LEFT = RIGHT[..., ::-1].copy()
WINDOW = patterns.SlidingWindow(3, 5)

# Name: arrays beside query, key and value; all other arguments; sizes that are not the usual.
CASES = {
    "plain": lambda: ({}, {}, {"groups": H}),
    "grouped": lambda: ({}, {"scale": 0.3}, {}),
    "one group": lambda: ({}, {"pattern": patterns.Causal()}, {"groups": 1}),
    "padded right": lambda: ({}, {"mask": RIGHT}, {}),
    "padded left": lambda: ({}, {"mask": LEFT, "pattern": patterns.Causal()}, {"groups": 1}),
    "mask of queries": lambda: ({}, {"mask": some(B, 1, T, 1)}, {}),
    "mask of heads": lambda: ({}, {"mask": [some(1, H, 1, S), some(1, H, 1, 1, rate=0.7)]}, {}),
    "all masks": lambda: (
        {"bias": random(B, H, T, S)},
        {"mask": [RIGHT, with_empty_rows(), some(T, S)]},
        {"groups": H},
    ),
    "nothing allowed": lambda: ({"sink": random(H)}, {"mask": np.zeros((1, 1, 1, 1), bool)}, {}),
    "sink": lambda: ({"sink": random(H)}, {"mask": with_empty_rows()}, {}),
    "sink of all keys": lambda: ({"sink": random(H) + 2}, {}, {}),
    "biases": lambda: (
        {"bias": random(H, 1, S), "more_bias": random(B, 1, T, 1)},
        {"logit_soft_cap": 2.0, "pattern": WINDOW, "offset": 4},
        {},
    ),
    "bias of one number": lambda: ({"bias": random(1, 1, 1, 1), "sink": random(H)}, {}, {}),
    "causal": lambda: ({}, {"pattern": patterns.Causal(), "offset": 14}, {}),
    "far offset": lambda: ({}, {"pattern": WINDOW, "offset": 43}, {}),
    "negative offset": lambda: ({}, {"pattern": patterns.Causal(), "offset": -9}, {}),
    "offset array": lambda: (
        {},
        {"pattern": WINDOW, "offset": keras.ops.convert_to_tensor(np.int32(6))},
        {},
    ),
    "offset of rows": lambda: (
        {},
        {"pattern": patterns.Causal() & WINDOW, "offset": integers(-3, 20, B)},
        {},
    ),
    "wide window": lambda: ({}, {"pattern": patterns.SlidingWindow(99, 99)}, {}),
    "future": lambda: ({}, {"pattern": ~patterns.Causal(), "offset": 20}, {}),
    "dilated": lambda: ({}, {"pattern": patterns.Dilated(3)}, {}),
    "strided": lambda: ({}, {"pattern": patterns.Strided(5) & patterns.Causal()}, {}),
    "prefix": lambda: ({}, {"pattern": patterns.Causal() | patterns.Prefix(7)}, {}),
    "block": lambda: ({}, {"pattern": patterns.Block(9), "offset": 5}, {}),
    "not": lambda: ({}, {"pattern": ~WINDOW & ~patterns.Dilated(2)}, {}),
    "own pattern": lambda: ({}, {"pattern": Thirds() & patterns.Causal()}, {}),
    "of a user": lambda: ({}, {"pattern": Thirds(), "mask": RIGHT}, {}),
    "segments": lambda: (
        {},
        {"segment_ids": (integers(0, 3, B, T), integers(0, 3, B, S)), "pattern": patterns.Causal()},
        {},
    ),
    "positions": lambda: (
        {},
        {
            "pattern": patterns.Causal(),
            "query_positions": integers(0, 50, B, T),
            "key_positions": integers(0, 50, S),
        },
        {},
    ),
    "alibi": lambda: (
        {},
        {"between": positions.ALiBi().bias_between(H), "pattern": patterns.Causal(), "offset": 14},
        {"groups": H},
    ),
    "alibi anywhere": lambda: (
        {},
        {
            "between": positions.ALiBi().bias_between(H),
            "query_positions": integers(0, 50, T),
            "key_positions": integers(0, 50, B, S),
        },
        {},
    ),
    "relative bias": lambda: (
        {"table": random(8, H)},
        {"between": relative_bias(), "mask": RIGHT, "offset": 5},
        {},
    ),
    "relative bias of rows": lambda: (
        {"table": random(8, H), "bias": random(1, 1, T, S)},
        {"between": relative_bias(), "offset": integers(0, 20, B), "logit_soft_cap": 3.0},
        {},
    ),
    "shaw": lambda: (
        {"relative_keys": random(1, 7, K), "relative_values": random(1, 7, V)},
        {"pattern": patterns.Causal(), "offset": 10},
        {"groups": H},
    ),
    "shaw of heads": lambda: (
        {"relative_keys": random(H, 7, K), "relative_values": random(H, 7, V)},
        {"mask": with_empty_rows()},
        {},
    ),
    "shaw of keys": lambda: (
        {"relative_keys": random(H, 5, K), "bias": random(B, 1, 1, S)},
        {"logit_soft_cap": 4.0, "offset": -4},
        {},
    ),
    "shaw of values": lambda: ({"relative_values": random(1, 9, V)}, {"mask": LEFT}, {}),
    "shaw anywhere": lambda: (
        {"relative_keys": random(H, 7, K), "relative_values": random(1, 7, V)},
        {"query_positions": integers(0, 50, B, T)},
        {},
    ),
    "more queries than keys": lambda: (
        {},
        {"pattern": patterns.Causal()},
        {"queries": 47, "keys": 11},
    ),
    "many keys": lambda: ({}, {"mask": some(B, 1, 1, 300)}, {"queries": 5, "keys": 300}),
    "one query": lambda: ({}, {"pattern": WINDOW, "offset": 30}, {"queries": 1}),
    "one key": lambda: ({}, {"mask": some(B, H, T, 1)}, {"keys": 1}),
    "one of each": lambda: ({"sink": random(H)}, {}, {"queries": 1, "keys": 1, "size": 1}),
    "one feature": lambda: ({}, {"pattern": patterns.Causal()}, {"size": 1, "features": 1}),
}


def problem(name):
    arrays, rest, sizes = CASES[name]()
    return {**inputs(**sizes), **arrays}, rest
