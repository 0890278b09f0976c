"""keras-self-attention 0.51.0, whose layers are in pages.py."""

import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, scores
from tests.docs.migration.pages import (
    KEY,
    MEMORY,
    MEMORY_PADDING,
    PADDING,
    B,
    D,
    T,
    X,
    additive_emission,
    close,
    multiplicative_emission,
    page,
    scaled_dot_product_attention,
    seq_self_attention,
    weights,
)

WINDOWS = {
    "all": ({}, None),
    "width 3": ({"width": 3}, patterns.SlidingWindow(1, 1)),
    "width 4": ({"width": 4}, patterns.SlidingWindow(2, 1)),
    "width 3, history": ({"width": 3, "history_only": True}, patterns.SlidingWindow(2, 0)),
    "history": ({"history_only": True}, "causal"),
}
ADDITIVE = weights((D, 6), (D, 6), (6,), (6, 1), (1,))


@pytest.mark.parametrize(("options", "pattern"), WINDOWS.values(), ids=WINDOWS)
def test_seq_self_attention(options, pattern):
    names = page("keras_self_attention")
    layer = ka.Attention(score=scores.Additive(6), pattern=pattern)
    layer.build(X.shape)
    names["load_additive"](layer.score, *ADDITIVE)
    output, weight = layer(X, return_attention_scores=True)
    expected, expected_weight = seq_self_attention(X, additive_emission(X, *ADDITIVE), **options)
    close(output, expected)
    close(weight[:, 0], expected_weight)

    layer = ka.Attention(score="general", pattern=pattern)
    layer.build(X.shape)
    multiplicative = weights((D, D), (1,))
    names["load_multiplicative"](layer.score, *multiplicative)
    emission = multiplicative_emission(X, *multiplicative)
    close(layer(X), seq_self_attention(X, emission, **options)[0])


def test_seq_self_attention_gives_padding_weight_and_ours_does_not():
    layer = ka.Attention(score=scores.Additive(6))
    layer.build(X.shape)
    page("keras_self_attention")["load_additive"](layer.score, *ADDITIVE)
    theirs, weight = seq_self_attention(X, additive_emission(X, *ADDITIVE), mask=PADDING)
    assert weight[1, :3, 3:].min() > 0
    # Without a mask: what theirs computes for real tokens.
    close(layer(X)[1, :3], theirs[1, :3])
    # With it: what theirs computes for the text without padding.
    alone = X[1:, :3]
    expected, _ = seq_self_attention(alone, additive_emission(alone, *ADDITIVE))
    close(layer(X, query_mask=PADDING)[1:, :3], expected)


def test_widths_had_no_effect_in_version_0_46():
    lower = np.arange(T)[:, None] - 1
    assert not ((np.arange(T) < lower) & (lower + 3 <= np.arange(T))).any()


def test_activation_of_scores():
    names = page("keras_self_attention")
    layer = ka.Attention(score=names["SigmoidAdditive"](6))
    layer.build(X.shape)
    names["load_additive"](layer.score, *ADDITIVE)
    layer.score.score_bias.assign(ADDITIVE[-1][0])
    emission = additive_emission(X, *ADDITIVE)
    expected, _ = seq_self_attention(X, emission, activation=lambda e: 1 / (1 + np.exp(-e)))
    close(layer(X), expected)


def test_the_regularizer_of_seq_self_attention():
    diverse = page("keras_self_attention")["Diverse"](0.5)
    layer = ka.Attention(score=scores.Additive(6), scores_regularizer=diverse)
    layer.build(X.shape)
    page("keras_self_attention")["load_additive"](layer.score, *ADDITIVE)
    layer(X)
    _, a = seq_self_attention(X, additive_emission(X, *ADDITIVE))
    expected = 0.5 * np.sum((a @ np.swapaxes(a, 1, 2) - np.eye(T)) ** 2) / B
    close(layer.losses[0], expected)


@pytest.mark.parametrize("mask", [None, PADDING], ids=["no mask", "mask"])
def test_seq_weighted_attention(mask):
    W, b = weights((D, 1), (1,))
    logits = (X @ W + b)[..., 0]
    if mask is not None:
        logits = logits - 10000.0 * (1.0 - mask)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weight = e / (e.sum(axis=1, keepdims=True) + 1e-7)
    layer = ka.FeedForwardAttention(activation=None)
    layer.build(X.shape)
    page("keras_self_attention")["load_weighted"](layer, W, b)
    output, our_weight = layer(X, mask=mask, return_attention_scores=True)
    close(output, np.sum(X * weight[..., None], axis=1))
    close(our_weight[:, 0, 0], weight)


@pytest.mark.parametrize("history_only", [False, True])
def test_scaled_dot_product_attention(history_only):
    layer = ka.Attention(pattern="causal" if history_only else None)
    close(
        layer([X, MEMORY, KEY], key_mask=MEMORY_PADDING),
        scaled_dot_product_attention(X, KEY, MEMORY, history_only, MEMORY_PADDING),
    )
