"""CPU time and memory of a training step over 16,384 tokens, by layer.

    taskset -c 0 python -m benchmarks.long_sequences --output long_sequences_tensorflow.json

A step is `train_on_batch` of a model of one causal layer with 4 heads and 256 features, with
Keras's defaults. "seconds" are those of the processor, on one core: the median of steps in turns.
"MiB" is that by which a process grows in a step, after one of 256 tokens.
"""

import math

import keras_attention as ka
from benchmarks import runner
from benchmarks.backends import trained
from keras_attention import patterns

LENGTH, HEADS, SIZE, WINDOW, ROUNDS = 16384, 4, 64, 256, 3
LAYERS = {
    "all pairs": lambda: ka.MultiHeadAttention(HEADS, SIZE, pattern="causal"),
    "window": lambda: ka.MultiHeadAttention(
        HEADS, SIZE, pattern=patterns.SlidingWindow(WINDOW - 1, 0)
    ),
    "LinearAttention": lambda: ka.LinearAttention(HEADS, SIZE, causal=True),
}


def step(name, length):
    """A function that takes a training step of one row of this length."""
    return trained(LAYERS[name](), (1, length, HEADS * SIZE), "auto")


def rows(small):
    length, rounds = (512, 1) if small else (LENGTH, ROUNDS)
    times = runner.in_turns({name: step(name, length) for name in LAYERS}, rounds, math.inf)
    for name, found in times.items():
        grown = runner.growth("long_sequences", "step", [name, 256], [name, length])
        seconds = found["processor_ms"] / 1000
        yield {"name": name, "length": length, "seconds": seconds, "MiB": grown["MiB"]}


def main():
    options = runner.parsed(__doc__)
    runner.report(rows(options.small), options)


if __name__ == "__main__":
    main()
