"""Small layers and inputs, and what they should give: for tests of peers' defects."""

import keras
import numpy as np

from tests.arrays import random

ops = keras.ops

B, T, S, D = 2, 4, 6, 8
FLOATS = ["float32", "bfloat16", "float16"]
IDS = np.array([[5, 3, 7, 2, 0, 0], [4, 1, 0, 0, 0, 0]])


def numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def randomize(layer, seed=0):
    """Random values for all weights, so that biases count."""
    for i, variable in enumerate(layer.trainable_variables):
        variable.assign(random(*variable.shape, seed=seed + i) / 2)
    return layer


def built(layer, *shapes):
    layer.build(*shapes)
    return randomize(layer)


def embedded(ids=IDS, seed=0):
    """Vectors of `ids` that carry a mask of the tokens that are not 0."""
    embedding = keras.layers.Embedding(10, D, mask_zero=True)
    embedding.build()
    return randomize(embedding, seed)(ops.convert_to_tensor(ids))


def expected_attention(query, key, value, allowed=None, bias=None):
    """Attention in float64 NumPy, a query at a time, of (B, T, H, K) arrays."""
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    scores = np.einsum("bthk,bshk->bhts", query, key) / np.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhts,bshv->bthv", weights, value), weights
