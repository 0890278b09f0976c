"""Layers with caches, and a sequence in pieces."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import patterns, positions
from tests.arrays import random

B, T, D, H = 3, 9, 16, 4

PATTERNS = {
    "none": lambda: None,
    "causal": patterns.Causal,
    "window": lambda: patterns.SlidingWindow(2, 0),
    "window both ways": lambda: patterns.SlidingWindow(3, 2),
    "window of itself": lambda: patterns.SlidingWindow(0, 0),
    "dilated window": lambda: patterns.SlidingWindow(4, 4) & patterns.Dilated(2),
    "dilated": lambda: patterns.Dilated(3),
    "strided": lambda: patterns.Strided(3),
    "prefix": lambda: patterns.SlidingWindow(1, 0) | patterns.Prefix(2),
    "block": lambda: patterns.Block(4),
    "not": lambda: ~patterns.Dilated(2) | patterns.SlidingWindow(0, 0),
}
RINGS = {"window", "window both ways", "window of itself", "dilated window", "block"}


class Marked(positions.Position):
    """Encodes keys by absolute positions, as a custom position may."""

    def encode(self, query, key, query_positions, key_positions):
        at = keras.ops.cast(key_positions, "float32")[..., None, None]
        return query, keras.ops.cast(key, "float32") * (1 + 0.1 * at)


POSITIONS = {
    "none": lambda: None,
    "rotary": positions.Rotary,
    "yarn": lambda: positions.Rotary(
        dim=4, layout="interleaved", scaling="yarn", factor=4.0, original_max_length=4
    ),
    "alibi": positions.ALiBi,
    "relative bias": lambda: positions.RelativeBias(8, 6, bidirectional=False),
    "shaw": lambda: positions.Shaw(2, per_head=True),
    "disentangled": lambda: positions.Disentangled(8, 6),
    "own": Marked,
}


def numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")))


X = random(B, T, D)


def made(layer, *shapes, seed=0):
    """The layer, built, with random weights, biases and sinks included."""
    layer.build(*(shapes or (X.shape,)))
    for index, weight in enumerate(layer.trainable_weights):
        # Like those of other seeds: rows of a table that differ by 1 or so.
        weight.assign(random(*weight.shape, seed=100 * seed + index) / weight.shape[0] ** 0.5)
    return layer


def heads(**kwargs):
    return made(ka.MultiHeadAttention(H, 8, value_dim=6, **kwargs))


def pieces(x, sizes):
    return [x[:, end - size : end] for size, end in zip(sizes, np.cumsum(sizes), strict=True)]


def decoded(layer, x, sizes, cache, *context):
    """The outputs of `x` in pieces of these sizes, side by side, and the last cache."""
    step = ready(lambda x, cache: layer(x, *context, cache=cache))
    outputs = []
    for piece in pieces(x, sizes):
        output, cache = step(piece, cache)
        outputs.append(output)
    return keras.ops.concatenate(outputs, axis=1), cache


def ready(function):
    """A function of arrays and caches, for several calls. JAX would compile each operation."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


def agree(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=tolerance, atol=tolerance)
