"""Blocks of sets: cross-attention alone, and inducing points. Their equation: tests/fuzz."""

import numpy as np

import keras_attention as ka
from tests.arrays import numpy

B, S, D, H = 2, 6, 8, 2
X = np.random.default_rng(0).normal(size=(B, S, D)).astype("float32")
KEPT = np.array([[True] * 6, [False, True, True, False, True, True]])


def random_weights(layer):
    for n, weight in enumerate(layer.trainable_variables):
        drawn = np.random.default_rng(n).normal(size=weight.shape)
        weight.assign(0.5 * drawn.astype("float32"))


def test_a_block_without_self_attention_is_the_block_of_a_set_transformer():
    block = ka.TransformerBlock(16, H, cross_attention=True, self_attention=False)
    queries = X[:, :3] + 1
    block(queries, X)
    random_weights(block)
    found = numpy(block(queries, X, context_mask=KEPT))
    _, scores = block(queries, X, return_attention_scores=True)
    assert {name: tuple(s.shape) for name, s in scores.items()} == {"cross_attention": (B, H, 3, S)}
    # Each query sees the context alone, and not the others.
    first = numpy(block(queries[:, :1], X, context_mask=KEPT))
    np.testing.assert_allclose(found[:, :1], first, atol=2e-6)
    memory = block.cache_context(X, KEPT)
    np.testing.assert_allclose(numpy(block(queries, memory)), found, atol=2e-6)


def test_inducing_points_attend_to_the_set_and_the_set_to_them():
    layer = ka.InducedSetAttentionBlock(16, H, num_inducing_points=3)
    layer(X)
    random_weights(layer)
    points = np.repeat(numpy(layer._points.queries).reshape(1, 3, D), B, axis=0)
    hidden = layer._to_points(points, X, context_mask=KEPT)
    expected = numpy(layer._to_elements(X, hidden)) * KEPT[..., None]
    np.testing.assert_allclose(numpy(layer(X, mask=KEPT)), expected, atol=5e-5)
