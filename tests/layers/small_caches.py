"""Layers with caches, and a sequence in pieces."""

import keras
import numpy as np

import keras_attention as ka
from keras_attention import patterns
from tests.arrays import numpy, random
from tests.compiled import quick

B, T, D, H = 3, 9, 16, 4

PATTERNS = {"none": lambda: None, "window": lambda: patterns.SlidingWindow(2, 0)}


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
    step = quick(lambda x, cache: layer(x, *context, cache=cache))
    outputs = []
    for piece in pieces(x, sizes):
        output, cache = step(piece, cache)
        outputs.append(output)
    return keras.ops.concatenate(outputs, axis=1), cache


def agree(found, expected, tolerance=2e-5):
    np.testing.assert_allclose(numpy(found), numpy(expected), rtol=tolerance, atol=tolerance)
