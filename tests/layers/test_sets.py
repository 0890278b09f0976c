"""Blocks of sets: cross-attention alone, learned queries, inducing points; their symmetries."""

import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import numpy

B, S, D, H = 2, 6, 8, 2
X = np.random.default_rng(0).normal(size=(B, S, D)).astype("float32")
KEPT = np.array([[True] * 6, [False, True, True, False, True, True]])


def random_weights(layer):
    for n, weight in enumerate(layer.trainable_variables):
        drawn = np.random.default_rng(n).normal(size=weight.shape)
        weight.assign(0.5 * drawn.astype("float32"))


def mab(block, x, y, mask=None):
    """MAB(X, Y) of Lee et al. 2019, equations 6 and 7, in float64."""

    def of(weight):
        return np.asarray(numpy(weight), "float64")

    def normalized(x, norm):
        centered = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return centered / deviation * of(norm.gamma) + of(norm.beta)

    attention = block.cross_attention_layer
    query, key, value = (
        np.einsum("btd,dhk->bhtk", x, of(dense.kernel)) + of(dense.bias)[:, None]
        for x, dense in zip(
            (x, y, y),
            (attention.query_dense, attention.key_dense, attention.value_dense),
            strict=True,
        )
    )
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(key.shape[-1])
    if mask is not None:
        scores = np.where(mask[:, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    heads = weights / weights.sum(-1, keepdims=True) @ value
    output = attention.output_dense
    attended = np.einsum("bhtk,hkd->btd", heads, of(output.kernel)) + of(output.bias)
    x = normalized(x + attended, block.cross_attention_norm)
    network = block.feed_forward
    inner, outer = network.intermediate_dense, network.output_dense
    hidden = np.maximum(x @ of(inner.kernel) + of(inner.bias), 0)
    return normalized(x + hidden @ of(outer.kernel) + of(outer.bias), block.feed_forward_norm)


def test_a_block_without_self_attention_is_the_block_of_a_set_transformer():
    block = ka.TransformerBlock(16, H, cross_attention=True, self_attention=False)
    queries = X[:, :3] + 1
    block(queries, X)
    random_weights(block)
    found = numpy(block(queries, X, context_mask=KEPT))
    np.testing.assert_allclose(found, mab(block, queries, X, KEPT), atol=2e-5)
    _, scores = block(queries, X, return_attention_scores=True)
    assert {name: tuple(s.shape) for name, s in scores.items()} == {"cross_attention": (B, H, 3, S)}
    # Each query sees the context alone, and not the others.
    first = numpy(block(queries[:, :1], X, context_mask=KEPT))
    np.testing.assert_allclose(found[:, :1], first, atol=2e-6)
    memory = block.cache_context(X, KEPT)
    np.testing.assert_allclose(numpy(block(queries, memory)), found, atol=2e-6)


@pytest.fixture(scope="module")
def induced():
    layer = ka.InducedSetAttentionBlock(16, H, num_inducing_points=3)
    layer(X)
    random_weights(layer)
    return layer


def test_inducing_points_attend_to_the_set_and_the_set_to_them(induced):
    points = np.broadcast_to(np.asarray(numpy(induced._points.queries), "float64"), (B, 3, D))
    hidden = mab(induced._to_points, points, X, KEPT)
    expected = mab(induced._to_elements, X, hidden) * KEPT[..., None]
    np.testing.assert_allclose(numpy(induced(X, mask=KEPT)), expected, atol=5e-5)
