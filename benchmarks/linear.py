"""CPU time and memory of layers in linear time against softmax attention, by length.

    KERAS_BACKEND=jax taskset -c 0 python -m benchmarks.linear --output linear_jax.json

A training step is `train_on_batch` of a model of one causal layer, with Keras's defaults; a token
is an eager call with a cache. Layers and lengths take turns; medians are kept. Values are seconds
of the processor, which other processes change little; on one core, since threads that wait for work
are counted too.
Layers of low rank have no order and no cache; "softmax of all pairs" is their counterpart. Memory
is that by which a process grows in a step, in MiB, after one of 256 positions.
A file that is there already is added to.

glibc returns arrays of more than 32 MiB to the system, which clears them when they are allocated
again. With `MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184` it keeps them;
steps measured so are apart in the file, "steps_kept".
"""

import math
import os

import keras

import keras_attention as ka
from benchmarks import runner
from benchmarks.backends import trained

HEADS, SIZE, RANK = 4, 32, 64
# Of steps and of tokens before one; steps of each layer, and tokens a tenth of them.
LENGTHS, POSITIONS, ROUNDS = (2048, 8192, 65536), (10, 100_000), 7
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


def step(name, length):
    """A function that takes a training step of one row of this length."""
    return trained(LAYERS[name](length), (1, length, HEADS * SIZE), "auto")


def token(name, at):
    """A function that adds a token after `at` others to a cache."""
    layer, array = LAYERS[name](at + 1), keras.random.normal((1, 1, HEADS * SIZE))
    layer.build(array.shape)
    cache = layer.make_cache(1, at + 1)
    cache["index"] = cache["index"] + at
    return lambda: keras.ops.convert_to_numpy(layer(array, cache=cache)[0])


def timed(figure, functions, rounds):
    """Rows of functions by (name, length)."""
    times = runner.in_turns(functions, rounds, math.inf)
    for (name, length), found in times.items():
        seconds = found["processor_ms"] / 1000
        yield {"name": name, "figure": figure, "length": length, "value": seconds}


def rows(small):
    lengths, positions, rounds = ([128], [10], 1) if small else (LENGTHS, POSITIONS, ROUNDS)
    steps = {
        (name, length): step(name, length)
        for length in lengths
        for name in LAYERS
        # Softmax over 65,536 positions would take minutes.
        if length <= 8192 or name not in SOFTMAX
    }
    kept = "_kept" if "MALLOC_MMAP_THRESHOLD_" in os.environ else ""
    yield from timed(f"steps{kept}", steps, rounds)
    tokens = {
        (name, at): token(name, at) for at in positions for name in LAYERS if name not in NO_CACHE
    }
    yield from timed("tokens", tokens, 10 * rounds)
    for name in () if small else LAYERS:
        grown = runner.growth("linear", "step", [name, 256], [name, 8192])
        yield {"name": name, "figure": "memory", "length": 8192, "value": grown["MiB"]}


def main():
    options = runner.parsed(__doc__)
    runner.report(rows(options.small), options, identity=("name", "figure", "length"))


if __name__ == "__main__":
    main()
