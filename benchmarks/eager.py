"""Calls outside of compiled programs, on tiny arrays: `python -m benchmarks.eager`.

What is measured is the cost of operations, not of numbers: (1, 16, 64), 8 heads of 16 features. Two
sides take turns: ours, and Keras's layer, KerasHub's, or, for a token with a cache, a call of ours
with that token alone.
"""

import keras

import keras_attention
from benchmarks import runner


def layer():
    x = keras.random.normal((1, 16, 64), seed=0)
    ours, other = keras_attention.MultiHeadAttention(8, 16), keras.layers.MultiHeadAttention(8, 16)
    return lambda: ours(x, x), lambda: other(x, x)


def causal():
    x = keras.random.normal((1, 16, 64), seed=0)
    ours = keras_attention.MultiHeadAttention(8, 16, pattern="causal")
    other = keras.layers.MultiHeadAttention(8, 16)
    return lambda: ours(x, x), lambda: other(x, x, use_causal_mask=True)


def block():
    from keras_hub.layers import TransformerEncoder

    x = keras.random.normal((1, 16, 64), seed=0)
    ours, other = keras_attention.TransformerBlock(128, 8), TransformerEncoder(128, 8)
    return lambda: ours(x), lambda: other(x)


def token():
    x = keras.random.normal((1, 1, 64), seed=0)
    ours = keras_attention.MultiHeadAttention(8, 16)
    ours(x)
    cache = ours.make_cache(1, 32)
    return lambda: ours(x, cache=cache), lambda: ours(x)


# What each row is, and its sides.
ROWS = {
    "layer": ("MultiHeadAttention, Keras's", layer),
    "causal": ("the same with a causal mask", causal),
    "block": ("TransformerBlock, KerasHub's TransformerEncoder", block),
    "token": ("a token with a cache of 32, without", token),
}


def rows(names, options):
    for name in names:
        work, sides = ROWS[name]
        yield name, work, *sides()


def main():
    runner.compare(__doc__, ROWS, rows)


if __name__ == "__main__":
    main()
