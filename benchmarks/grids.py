"""Patterns of a grid against all pairs, in training: `python -m benchmarks.grids`.

`MultiHeadAttention` over the 4,096 tokens of a 64 × 64 grid. The ratio is our time with a pattern
to that without one; a layer of all pairs takes turns with it. Memory is that by which a process
grows in a training step of the full size, after one of a small grid; of all pairs it is measured of
our layer, which stores no scores, and of `keras.layers.MultiHeadAttention`.
"""

import keras
import numpy as np

import keras_attention
from benchmarks import runner
from benchmarks.attention.backends import BACKEND
from keras_attention import patterns

FULL = {"side": 64, "batch": 1, "features": 128, "heads": 4}
SMALL = {"side": 16, "batch": 1, "features": 16, "heads": 2}

PATTERNS = {
    "window": lambda n: patterns.GridWindow((n, n), 8),
    "shifted": lambda n: patterns.GridWindow((n, n), 8, shift=4),
    "neighborhood": lambda n: patterns.Neighborhood((n, n), 7),
    "axial": lambda n: patterns.Axial((n, n)),
}


def layer(name, sizes):
    heads, size = sizes["heads"], sizes["features"] // sizes["heads"]
    if name == "keras":
        return keras.layers.MultiHeadAttention(heads, size)
    pattern = PATTERNS[name](sizes["side"]) if name in PATTERNS else None
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
    """What this process grows by, after a step of a small grid."""
    small = {**sizes, "side": 16}
    grown, _ = runner.growth(step(name, small, jit), lambda: step(name, sizes, jit)())
    return round(grown, 1)


def rows(names, options):
    sizes, jit = settings(options)
    for name in names:
        yield name, "training step", step(name, sizes, jit), step("all", sizes, jit)


def memory_rows(names, options):
    for name in (*names, "all", "keras"):
        grown = runner.in_a_process("grids", "mebibytes", name, *settings(options))
        yield {"name": name, "MiB": grown}


def settings(options):
    return SMALL if options.small else FULL, BACKEND == "jax" or options.xla


def main():
    parser = runner.parser(__doc__, PATTERNS)
    parser.add_argument("--xla", action="store_true", help="TensorFlow's steps compiled by XLA")
    parser.add_argument("--memory", action="store_true", help="memory instead of time")
    options = runner.parsed(parser, PATTERNS)
    about = {**settings(options)[0], "xla": options.xla}
    if options.memory:
        runner.report(memory_rows(options.rows, options), options, str, **about)
    else:
        runner.turns(rows(options.rows, options), options, **about)


if __name__ == "__main__":
    main()
