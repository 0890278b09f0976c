"""Time of layers that attend through a state against softmax attention, by length.

    KERAS_BACKEND=jax python -m benchmarks.linear --json benchmarks/results/linear_jax.json

A training step is `train_on_batch` of a model of one causal layer, with Keras's defaults; a token
is an eager call with a cache. All are measured in one run, and in turn.
"""

import argparse
import json
import os
import time

import keras
import numpy as np

import keras_attention as ka

HEADS, SIZE = 4, 32
LAYERS = {
    "MultiHeadAttention": lambda: ka.MultiHeadAttention(HEADS, SIZE, pattern="causal"),
    "LinearAttention": lambda: ka.LinearAttention(HEADS, SIZE, causal=True),
    "Retention": lambda: ka.Retention(HEADS, SIZE),
    "GatedLinearAttention": lambda: ka.GatedLinearAttention(HEADS, SIZE),
    "GatedDeltaNet": lambda: ka.GatedDeltaNet(HEADS, SIZE),
}


def step(make, length):
    """A function that takes a training step of one row of this length."""
    x = keras.Input((length, HEADS * SIZE))
    model = keras.Model(x, make()(x))
    model.compile("sgd", "mse")
    array = np.random.default_rng(0).normal(size=(1, length, HEADS * SIZE)).astype("float32")
    model.train_on_batch(array, array)
    return lambda: model.train_on_batch(array, array)


def seconds(functions, rounds):
    """The least time of each of some functions, called in turn."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            found[name] = min(found[name], time.perf_counter() - start)
    return found


def steps(length, names, rounds):
    return seconds({name: step(LAYERS[name], length) for name in names}, rounds)


def tokens(name, at, rounds=30):
    """The least time of a token after `at` others, with a cache."""
    layer, token = LAYERS[name](), keras.random.normal((1, 1, HEADS * SIZE))
    layer.build(token.shape)
    cache = layer.make_cache(1, at + 1)
    cache["index"] = cache["index"] + at
    function = {"token": lambda: keras.ops.convert_to_numpy(layer(token, cache=cache)[0])}
    function["token"]()
    return seconds(function, rounds)["token"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192, 65536])
    given = parser.parse_args()
    linear = [name for name in LAYERS if name != "MultiHeadAttention"]
    found = {
        "backend": keras.backend.backend(),
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1"),
        "steps": {},
        "tokens": {},
    }
    for length in given.lengths:
        # Softmax over 65,536 positions would take minutes.
        names = list(LAYERS) if length <= 8192 else linear
        found["steps"][length] = steps(length, names, 5 if length <= 8192 else 2)
        print(length, found["steps"][length], flush=True)
    for name in LAYERS:
        found["tokens"][name] = {at: tokens(name, at) for at in (10, 100_000)}
        print(name, found["tokens"][name], flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
