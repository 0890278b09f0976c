"""Calls outside of compiled programs, on tiny arrays: `python -m benchmarks.eager`.

What is measured is the cost of operations, not of numbers: (1, 16, 64), 8 heads of 16 features. Two
sides take turns: ours, and Keras's layer, KerasHub's, or, for a token with a cache, a call of ours
with that token alone.
"""

import keras

import keras_attention
from benchmarks import runner


def sequence(tokens=16):
    return keras.random.normal((1, tokens, 64), seed=0)


def layers(pattern=None, **options):
    ours = keras_attention.MultiHeadAttention(8, 16, pattern=pattern)
    x, other = sequence(), keras.layers.MultiHeadAttention(8, 16)
    return lambda: ours(x, x), lambda: other(x, x, **options)


def block():
    from keras_hub.layers import TransformerEncoder

    x, ours = sequence(), keras_attention.TransformerBlock(128, 8)
    other = TransformerEncoder(128, 8)
    return lambda: ours(x), lambda: other(x)


def token():
    x, ours = sequence(1), keras_attention.MultiHeadAttention(8, 16)
    ours(x)
    cache = ours.make_cache(1, 32)
    return lambda: ours(x, cache=cache), lambda: ours(x)


# What each row is, and its sides.
ROWS = {
    "layer": ("`MultiHeadAttention` / Keras's", layers),
    "causal": ("the same, causal", lambda: layers("causal", use_causal_mask=True)),
    "block": ("`TransformerBlock` / KerasHub's `TransformerEncoder`", block),
    "token": ("a token with a cache / without, both ours", token),
}


def sides(name, options):
    work, both = ROWS[name]
    return work, *both()


def main():
    runner.turns(sides, runner.parsed(__doc__, rows=ROWS))


if __name__ == "__main__":
    main()
