"""Grouped heads, and queries and keys that are normalized."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, MultiHeadAttention
from tests import definition
from tests.arrays import close, random, run
from tests.arrays import wide as numpy
from tests.fuzz.configurations import SCORES, Random, defined_score, fill
from tests.gradients import weight_gradients
from tests.layers.small_heads import (
    B,
    D,
    G,
    H,
    K,
    S,
    T,
    V,
    arrays,
    attend,
    heads_of,
    in_full,
    mask,
    randomize,
)


@pytest.mark.parametrize("name", SCORES)
def test_groups_are_the_definition(name):
    query, key, value = arrays()
    score = SCORES[name]()
    if not isinstance(score, str):
        score.build(query.shape, key.shape)
        fill(score, Random(0))
    found = run(attend(mask=mask(), score=score), query, key, value)
    given = {"mask": mask(), **defined_score(score, H)}
    expected = definition.attend(query, in_full(key), in_full(value), **given)
    for answer, correct in zip(found, expected, strict=True):
        close(answer, correct)
    assert (found[0][~mask().any(axis=-1).transpose(0, 2, 1)] == 0).all()


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads_are_those_of_keras(groups):
    ours = MultiHeadAttention(H, K, num_key_value_heads=groups)
    theirs = keras.layers.GroupQueryAttention(K, H, groups)
    query, value = random(B, T, D), random(B, S, D, seed=1)
    randomize(ours, query.shape, value.shape)
    theirs.build(query.shape, value.shape)
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    theirs.set_weights(ours.get_weights())
    allowed = np.tri(T, S, 1, dtype=bool)[None].repeat(B, axis=0)
    call = {"attention_mask": allowed, "return_attention_scores": True}

    def both(query, value):
        return [*ours(query, value, **call), *theirs(query, value, **call)]

    output, weights, expected, expected_weights = run(both, query, value)
    close(output, expected)
    close(weights, expected_weights)


# QK-norm


def normed(x, kind, gamma):
    x = x.astype("float64")
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True)) * gamma


def test_qk_norm_of_raw_inputs_ignores_their_size():
    layer = Attention(qk_norm="rms", score="dot")
    query, value = random(B, T, D), random(B, S, D, seed=1)
    layer.build(query.shape, value.shape)
    call = {"return_attention_scores": True}

    def both(query, value):
        return layer(query, value, **call)[1], layer(100 * query, 100 * value, **call)[1]

    # RMSNorm adds an epsilon to the squares.
    close(*run(both, query, value), 1e-4)
    assert len(layer.trainable_variables) == 2


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_qk_norm_has_finite_gradients_at_zero_and_of_huge_heads(kind):
    layer = Attention(H, K, qk_norm=kind)
    query, value = random(B, T, D), random(B, S, D, seed=1)
    query[0], query[1] = 0.0, 1e15 * query[1]
    layer.build(query.shape, value.shape)
    found, of_inputs = weight_gradients(
        layer, lambda *x: keras.ops.square(layer(*x)), [query, value]
    )
    assert all(np.isfinite(gradient).all() for gradient in found + of_inputs)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_qk_norm_is_right_in_mixed_precision(policy):
    query, value = random(B, T, D), random(B, S, D, seed=1)
    wide = randomize(Attention(H, K, qk_norm="rms"), query.shape, value.shape)
    layer = Attention(H, K, qk_norm="rms", dtype=policy)
    layer.build(query.shape, value.shape)
    layer.set_weights(wide.get_weights())
    large = 300 if policy == "mixed_float16" else 1e4
    # The squares of the heads are beyond float16.
    close(numpy(layer(large * query, large * value)) / large, numpy(wide(query, value)), 0.05)


@pytest.mark.parametrize("make", [Attention, MultiHeadAttention])
def test_queries_keys_and_values_are_clipped_before_they_are_normalized(make):
    query, value = random(B, T, D), random(B, S, D, seed=1)
    layer = make(H, K, V, clip_qkv=0.4, qk_norm="rms", use_bias=True, num_key_value_heads=G)
    randomize(layer, query.shape, value.shape)
    _, weights = run(lambda *x: layer(*x, return_attention_scores=True), query, value)
    q, k, v = (
        np.clip(heads_of(layer, x, name), -0.4, 0.4)
        for x, name in ((query, "query"), (value, "key"), (value, "value"))
    )
    q = normed(q, "rms", layer.query_norm.get_weights()[0])
    k = normed(k, "rms", layer.key_norm.get_weights()[0])
    expected, of_definition = definition.attend(q, in_full(k), in_full(v))
    close(weights, of_definition, 1e-3)
    if make is Attention:
        (output,) = run(lambda *x: [layer(*x)], query, value)
        close(output, expected.reshape(B, T, -1), 1e-3)


def test_clipped_heads_have_no_gradient():
    layer, x = Attention(1, 2, clip_qkv=1.0), np.ones((1, 2, 2), "float32")
    layer.build(x.shape)
    layer.set_weights([np.array([[0.1, 2.0], [0.3, 2.0]])] * 3)
    (*_, of_values), _ = weight_gradients(layer, layer, [x])
    close(of_values, [[2.0, 0.0], [2.0, 0.0]])
