"""CPU time and memory of layers in linear time against softmax attention, by length.

    KERAS_BACKEND=jax taskset -c 0 python -m benchmarks.linear --output linear_jax.json

A training step is `train_on_batch` of a model of one causal layer, with Keras's defaults; a token
is an eager call with a cache. Layers and lengths take turns; medians are kept. Values are seconds
of the processor, which other processes change little; on one core, since threads that wait for work
are counted too.
Layers of low rank have no order and no cache; "softmax of all pairs" is their counterpart. Memory
is that by which a process grows in a step, in MiB, after one of 256 positions.
A file that is there already is added to, so that a run may have some `--layers` and `--lengths`.

glibc returns arrays of more than 32 MiB to the system, which clears them when they are allocated
again. With `MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184` it keeps them;
steps measured so are apart in the file, "steps_kept".
"""

import math
import os

import keras
import numpy as np

import keras_attention as ka
from benchmarks import runner

HEADS, SIZE, RANK = 4, 32, 64
ALL_PAIRS = "softmax of all pairs"
LAYERS = {
    "MultiHeadAttention": lambda length: ka.MultiHeadAttention(HEADS, SIZE, pattern="causal"),
    "LinearAttention": lambda length: ka.LinearAttention(HEADS, SIZE, causal=True),
    "Retention": lambda length: ka.Retention(HEADS, SIZE),
    "GatedLinearAttention": lambda length: ka.GatedLinearAttention(HEADS, SIZE),
    "GatedDeltaNet": lambda length: ka.GatedDeltaNet(HEADS, SIZE),
    ALL_PAIRS: lambda length: ka.MultiHeadAttention(HEADS, SIZE),
    "LinformerAttention": lambda length: ka.LinformerAttention(HEADS, SIZE, length, RANK),
    "NystromAttention": lambda length: ka.NystromAttention(HEADS, SIZE, RANK),
}
SOFTMAX = ("MultiHeadAttention", ALL_PAIRS)
NO_CACHE = (ALL_PAIRS, "LinformerAttention", "NystromAttention")


def step(make, length):
    """A function that takes a training step of one row of this length."""
    x = keras.Input((length, HEADS * SIZE))
    model = keras.Model(x, make(length)(x))
    model.compile("sgd", "mse")
    array = np.random.default_rng(0).normal(size=(1, length, HEADS * SIZE)).astype("float32")
    model.train_on_batch(array, array)
    return lambda: model.train_on_batch(array, array)


def token(make, at):
    """A function that adds a token after `at` others to a cache."""
    layer, array = make(at + 1), keras.random.normal((1, 1, HEADS * SIZE))
    layer.build(array.shape)
    cache = layer.make_cache(1, at + 1)
    cache["index"] = cache["index"] + at
    call = lambda: keras.ops.convert_to_numpy(layer(array, cache=cache)[0])  # noqa: E731
    call()
    return call


def mebibytes(name, length):
    """The growth of this process in a step."""
    return runner.growth(lambda: step(LAYERS[name], 256), lambda: step(LAYERS[name], length))[0]


def timed(figure, functions, rounds):
    """Rows of functions by (name, length)."""
    times = runner.in_turns(functions, rounds, math.inf)
    for (name, length), found in times.items():
        seconds = found["processor_ms"] / 1000
        yield {"name": name, "figure": figure, "length": length, "value": seconds}


def rows(options):
    yield from timed(
        "steps_kept" if "MALLOC_MMAP_THRESHOLD_" in os.environ else "steps",
        {
            (name, length): step(LAYERS[name], length)
            for length in options.lengths
            for name in options.layers
            # Softmax over 65,536 positions would take minutes.
            if length <= 8192 or name not in SOFTMAX
        },
        options.rounds,
    )
    for name in options.layers:
        for length in options.memory:
            grown = runner.in_a_process("linear", "mebibytes", name, length)
            yield {"name": name, "figure": "memory", "length": length, "value": grown}
    tokens = {
        (name, at): token(LAYERS[name], at)
        for at in options.positions
        for name in options.layers
        if name not in NO_CACHE
    }
    yield from timed("tokens", tokens, 10 * options.rounds)


def main():
    parser = runner.parser(__doc__)
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192, 65536])
    parser.add_argument("--positions", type=int, nargs="*", default=[10, 100_000])
    parser.add_argument(
        "--rounds", type=int, default=7, help="of steps; of tokens 10 times as many"
    )
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="lengths to measure at")
    options = runner.parsed(parser)
    if options.small:
        options.lengths, options.positions, options.rounds = [128], [10], 1
    runner.report(rows(options), options, str, identity=("name", "figure", "length"))


if __name__ == "__main__":
    main()
