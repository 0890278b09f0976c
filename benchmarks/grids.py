"""Patterns of a grid against all pairs, in training: `python -m benchmarks.grids`.

`MultiHeadAttention` over the 4,096 tokens of a 64 × 64 grid. The ratio is our time with a pattern
to that without one; a layer of all pairs takes turns with it. Memory is that by which a process
grows in a training step of the full size, after one of a small grid; of all pairs it is measured of
our layer, which stores no scores, and of `keras.layers.MultiHeadAttention`.
"""

import keras

import keras_attention
from benchmarks import runner
from benchmarks.backends import BACKEND, trained
from keras_attention import patterns

FULL = {"side": 64, "batch": 1, "features": 128, "heads": 4}
SMALL = {"side": 16, "batch": 1, "features": 16, "heads": 2}

PATTERNS = {
    "window": lambda n: patterns.GridWindow((n, n), 8),
    "shifted": lambda n: patterns.GridWindow((n, n), 8, shift=4),
    "neighborhood": lambda n: patterns.Neighborhood((n, n), 7),
    "axial": lambda n: patterns.Axial((n, n)),
}


def step(name, sizes, jit):
    """A function that makes a training step."""
    heads, features, side = sizes["heads"], sizes["features"], sizes["side"]
    pattern = PATTERNS[name](side) if name in PATTERNS else None
    layer = keras_attention.MultiHeadAttention(heads, features // heads, pattern=pattern)
    if name == "keras":
        layer = keras.layers.MultiHeadAttention(heads, features // heads)
    return trained(lambda x: layer(x, x), (sizes["batch"], side**2, features), jit)


def main():
    flags = {
        "--xla": runner.flag("TensorFlow's steps compiled by XLA"),
        "--memory": runner.flag("memory instead of time"),
    }
    options = runner.parsed(__doc__, flags, PATTERNS)
    sizes, jit = SMALL if options.small else FULL, BACKEND == "jax" or options.xla

    def sides(name, options):
        return "training step", step(name, sizes, jit), step("all", sizes, jit)

    def memory(name):
        given = [name, {**sizes, "side": 16}, jit], [name, sizes, jit]
        return {"name": name, "MiB": round(runner.growth("grids", "step", *given)["MiB"], 1)}

    about = {**sizes, "xla": options.xla}
    if options.memory:
        runner.report(map(memory, (*options.rows, "all", "keras")), options, **about)
    else:
        runner.turns(sides, options, **about)


if __name__ == "__main__":
    main()
