"""Patterns of a grid against all pairs, in training: `python -m benchmarks.grids`.

`MultiHeadAttention` over the 4,096 tokens of a 64 × 64 grid. The ratio is our time with a pattern
to that without one; a layer of all pairs takes turns with it. Memory is that by which a process
grows in a training step of the full size, after one of a small grid; of all pairs it is measured of
our layer, which stores no scores, and of `keras.layers.MultiHeadAttention`.
"""

import argparse
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_attention
from benchmarks import turns
from benchmarks.attention.backends import BACKEND
from benchmarks.processes import answer, peak_bytes
from keras_attention import patterns

FULL = {"side": 64, "batch": 1, "features": 128, "heads": 4}
SMALL = {"side": 16, "batch": 1, "features": 16, "heads": 2}

# Name: the pattern, and the largest ratio aimed at.
PATTERNS = {
    "window": (lambda n: patterns.GridWindow((n, n), 8), 0.15),
    "shifted": (lambda n: patterns.GridWindow((n, n), 8, shift=4), 0.15),
    "neighborhood": (lambda n: patterns.Neighborhood((n, n), 7), 0.3),
    "axial": (lambda n: patterns.Axial((n, n)), 0.3),
}


def layer(name, sizes):
    heads, size = sizes["heads"], sizes["features"] // sizes["heads"]
    if name == "keras":
        return keras.layers.MultiHeadAttention(heads, size)
    pattern = PATTERNS[name][0](sizes["side"]) if name in PATTERNS else None
    return keras_attention.MultiHeadAttention(heads, size, pattern=pattern)


def model(name, sizes, jit):
    symbol = keras.Input((sizes["side"] ** 2, sizes["features"]))
    found = keras.Model(symbol, layer(name, sizes)(symbol, symbol))
    found.compile("sgd", "mse", jit_compile=jit)
    return found


def step(name, sizes, jit):
    """A function that trains for one batch."""
    shape = (sizes["batch"], sizes["side"] ** 2, sizes["features"])
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    trained = model(name, sizes, jit)
    return lambda: trained.train_on_batch(x, x)


def mebibytes(name, sizes, jit):
    step(name, {**sizes, "side": 16}, jit)()
    before = peak_bytes()
    step(name, sizes, jit)()
    return (peak_bytes() - before) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    turns.add_arguments(parser, PATTERNS)
    parser.add_argument("--xla", action="store_true", help="TensorFlow's steps compiled by XLA")
    parser.add_argument("--memory", action="store_true", help="memory instead of time")
    parser.add_argument("--measure", help="the memory of one layer, in MiB")
    options = parser.parse_args()
    sizes = SMALL if options.small else FULL
    jit = BACKEND == "jax" or options.xla
    if options.measure:
        print(mebibytes(options.measure, sizes, jit))
        return
    picked = turns.chosen(options, PATTERNS, parser)
    if not options.memory:
        rows = (
            (name, "training step", step(name, sizes, jit), step("all", sizes, jit),
             round(1 / PATTERNS[name][1], 1))
            for name in picked
        )  # fmt: skip
        turns.measure(rows, options, **sizes, xla=options.xla)
        return
    flags = [flag for flag in ("small", "xla") if getattr(options, flag)]
    found = {
        name: round(
            float(answer("benchmarks.grids", "--measure", name, *(f"--{f}" for f in flags))), 1
        )
        for name in (*picked, "all", "keras")
    }
    print(found)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(json.dumps({**sizes, "backend": BACKEND, "MiB": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
