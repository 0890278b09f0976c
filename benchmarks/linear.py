"""CPU time of layers that attend through a state against softmax attention, by length.

    KERAS_BACKEND=jax python -m benchmarks.linear --json benchmarks/results/linear_jax.json

A training step is `train_on_batch` of a model of one causal layer, with Keras's defaults; a token
is an eager call with a cache. Seconds are those of all cores, which other processes change little.
A file that is there already is added to, so that a run may have some `--layers` and `--lengths`.
"""

import argparse
import json
import os
import pathlib
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


def seconds(function, rounds):
    """The least CPU time of a call."""
    found = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        function()
        found = min(found, time.process_time() - start)
    return found


def token(make, at):
    """A function that adds a token after `at` others to a cache."""
    layer, array = make(), keras.random.normal((1, 1, HEADS * SIZE))
    layer.build(array.shape)
    cache = layer.make_cache(1, at + 1)
    cache["index"] = cache["index"] + at
    call = lambda: keras.ops.convert_to_numpy(layer(array, cache=cache)[0])  # noqa: E731
    call()
    return call


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192, 65536])
    parser.add_argument("--positions", type=int, nargs="*", default=[10, 100_000])
    given = parser.parse_args()
    path = pathlib.Path(given.json or os.devnull)
    found = {"backend": keras.backend.backend(), "steps": {}, "tokens": {}}
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
    for name in given.layers:
        for length in given.lengths:
            # Softmax over 65,536 positions would take minutes.
            if length <= 8192 or name != "MultiHeadAttention":
                time_of = seconds(step(LAYERS[name], length), 3)
                found["steps"].setdefault(str(length), {})[name] = time_of
        for at in given.positions:
            time_of = seconds(token(LAYERS[name], at), 30)
            found["tokens"].setdefault(name, {})[str(at)] = time_of
    print(json.dumps(found, indent=1))
    if given.json:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
