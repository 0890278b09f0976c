"""CPU time and memory of layers in linear time against softmax attention, by length.

    KERAS_BACKEND=jax taskset -c 0 python -m benchmarks.linear --json linear_jax.json

A training step is `train_on_batch` of a model of one causal layer, with Keras's defaults; a token
is an eager call with a cache. Layers and lengths take turns; medians are kept. Seconds are those
of the processor, which other processes change little; on one core, since threads that wait for work
are counted too.
Layers of low rank have no order and no cache; "softmax of all pairs" is their counterpart. Memory
is that by which a process grows in a step, in MiB, after one of 256 positions.
A file that is there already is added to, so that a run may have some `--layers` and `--lengths`.

glibc returns arrays of more than 32 MiB to the system, which clears them when they are allocated
again. With `MALLOC_MMAP_THRESHOLD_=8589934592 MALLOC_TRIM_THRESHOLD_=17179869184` it keeps them;
steps measured so are apart in the file, "steps_kept".
"""

import argparse
import json
import os
import pathlib
import statistics
import time

import keras
import numpy as np

import keras_attention as ka
from benchmarks.processes import answer, peak_bytes

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


def medians(functions, rounds):
    """The median CPU time of a call of each function, in turns."""
    taken = {key: [] for key in functions}
    for _ in range(rounds):
        for key, function in functions.items():
            start = time.process_time()
            function()
            taken[key].append(time.process_time() - start)
    return {key: statistics.median(times) for key, times in taken.items()}


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
    step(LAYERS[name], 256)
    before = peak_bytes()
    step(LAYERS[name], length)
    return (peak_bytes() - before) / 2**20


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear", description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--layers", nargs="*", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192, 65536])
    parser.add_argument("--positions", type=int, nargs="*", default=[10, 100_000])
    parser.add_argument(
        "--rounds", type=int, default=7, help="of steps; of tokens 10 times as many"
    )
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="lengths to measure at")
    parser.add_argument("--memory-of", choices=LAYERS, help="print that of one, at one length")
    given = parser.parse_args()
    if given.memory_of:
        print(mebibytes(given.memory_of, *given.memory))
        return
    path = pathlib.Path(given.json or os.devnull)
    steps = "steps_kept" if "MALLOC_MMAP_THRESHOLD_" in os.environ else "steps"
    found = {"backend": keras.backend.backend(), "tokens": {}}
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
    # Softmax over 65,536 positions would take minutes.
    timed = [
        (length, name)
        for length in given.lengths
        for name in given.layers
        if length <= 8192 or name not in SOFTMAX
    ]
    functions = {(length, name): step(LAYERS[name], length) for length, name in timed}
    for (length, name), time_of in medians(functions, given.rounds).items():
        found.setdefault(steps, {}).setdefault(str(length), {})[name] = time_of
    del functions
    for name in given.layers:
        for length in given.memory:
            of_name = ["--memory-of", name, "--memory", str(length)]
            grown = float(answer("benchmarks.linear", *of_name))
            found.setdefault("memory", {}).setdefault(str(length), {})[name] = grown
    timed = [(name, at) for at in given.positions for name in given.layers if name not in NO_CACHE]
    functions = {(name, at): token(LAYERS[name], at) for name, at in timed}
    for (name, at), time_of in medians(functions, 10 * given.rounds).items():
        found["tokens"].setdefault(name, {})[str(at)] = time_of
    print(json.dumps(found, indent=1))
    if given.json:
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
