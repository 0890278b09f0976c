"""Blocks of sets: cross-attention alone, learned queries, inducing points; their symmetries."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import masks
from tests.arrays import numpy

B, S, D, H = 2, 6, 8, 2
ORDER = np.array([3, 0, 5, 1, 4, 2])
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


def test_another_order_of_the_set_is_another_order_of_the_outputs(induced):
    found = numpy(induced(X[:, ORDER], mask=KEPT[:, ORDER]))
    np.testing.assert_allclose(found, numpy(induced(X, mask=KEPT))[:, ORDER], atol=1e-5)


def test_padding_of_a_set_changes_nothing(induced):
    whole = numpy(induced(X, mask=KEPT))
    noise = np.where(KEPT[..., None], X, np.nan).astype("float32")
    carried = masks.carry(keras.ops.convert_to_tensor(noise), keras.ops.convert_to_tensor(KEPT))
    output = induced(carried)
    np.testing.assert_allclose(numpy(output), whole, atol=1e-6)
    np.testing.assert_array_equal(numpy(masks.implicit(output)), KEPT)
    alone = numpy(induced(X[1:][:, KEPT[1]]))
    np.testing.assert_allclose(whole[1:][:, KEPT[1]], alone, atol=1e-5)


@pytest.mark.ci
def test_perceiver_io_ignores_the_order_and_the_padding():
    cross = {"cross_attention": True, "self_attention": False, "residual": "pre"}
    elements, real = keras.Input((None, D)), keras.Input((None,), dtype="bool")
    latents = ka.LearnedQueries(3, dim=12)(elements)
    latents = ka.TransformerBlock(16, H, **cross)(latents, elements, context_mask=real)
    latents = ka.TransformerBlock(16, H, residual="pre")(latents)
    outputs = ka.TransformerBlock(16, H, **cross)(ka.LearnedQueries(4, dim=D)(elements), latents)
    perceiver = keras.Model([elements, real], outputs)
    random_weights(perceiver)
    found = numpy(perceiver([X, KEPT]))
    assert found.shape == (B, 4, D)
    ordered = perceiver([X[:, ORDER], KEPT[:, ORDER]])
    np.testing.assert_allclose(numpy(ordered), found, rtol=1e-4, atol=1e-5)
    noise = np.where(KEPT[..., None], X, np.nan).astype("float32")
    np.testing.assert_allclose(numpy(perceiver([noise, KEPT])), found, rtol=1e-4, atol=1e-5)
    alone = perceiver([X[1:][:, KEPT[1]], np.ones((1, KEPT[1].sum()), bool)])
    np.testing.assert_allclose(numpy(alone), found[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.ci
def test_pooling_by_attention_ignores_the_order_and_the_padding():
    elements = keras.Input((None, D))
    seeds = ka.LearnedQueries(2, name="seeds")(elements)
    pooled = ka.TransformerBlock(16, H, cross_attention=True, self_attention=False)(seeds, elements)
    model = keras.Model(elements, pooled)
    random_weights(model)
    found = numpy(model(X))
    assert found.shape == (B, 2, D)
    np.testing.assert_allclose(numpy(model(X[:, ORDER])), found, atol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_differs_by_its_rounding(induced, policy):
    half = ka.InducedSetAttentionBlock(16, H, num_inducing_points=3, dtype=policy)
    half(X)
    for weight, given in zip(half.weights, induced.weights, strict=True):
        weight.assign(given.value)
    np.testing.assert_allclose(numpy(half(X, mask=KEPT)), numpy(induced(X, mask=KEPT)), atol=0.1)
    assert np.isfinite(numpy(half(1000 * X, mask=KEPT))).all()
