"""keras-self-attention 0.51.0, whose layers are in pages.py."""

import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, scores
from tests.docs.migration import pages

WINDOWS = {
    "all": ({}, None),
    "width 3": ({"width": 3}, patterns.SlidingWindow(1, 1)),
    "width 4": ({"width": 4}, patterns.SlidingWindow(2, 1)),
    "width 3, history": ({"width": 3, "history_only": True}, patterns.SlidingWindow(2, 0)),
    "history": ({"history_only": True}, "causal"),
}
ADDITIVE = pages.weights((pages.D, 6), (pages.D, 6), (6,), (6, 1), (1,))


@pytest.mark.parametrize(("options", "pattern"), WINDOWS.values(), ids=WINDOWS)
def test_seq_self_attention(options, pattern):
    names = pages.page("keras_self_attention")
    layer = ka.Attention(score=scores.Additive(6), pattern=pattern)
    layer.build(pages.X.shape)
    names["load_additive"](layer.score, *ADDITIVE)
    output, weight = layer(pages.X, return_attention_scores=True)
    expected, expected_weight = pages.seq_self_attention(
        pages.X, pages.additive_emission(pages.X, *ADDITIVE), **options
    )
    pages.close(output, expected)
    pages.close(weight[:, 0], expected_weight)

    layer = ka.Attention(score="general", pattern=pattern)
    layer.build(pages.X.shape)
    multiplicative = pages.weights((pages.D, pages.D), (1,))
    names["load_multiplicative"](layer.score, *multiplicative)
    emission = pages.multiplicative_emission(pages.X, *multiplicative)
    pages.close(layer(pages.X), pages.seq_self_attention(pages.X, emission, **options)[0])


def test_seq_self_attention_gives_padding_weight_and_ours_does_not():
    layer = ka.Attention(score=scores.Additive(6))
    layer.build(pages.X.shape)
    pages.page("keras_self_attention")["load_additive"](layer.score, *ADDITIVE)
    theirs, weight = pages.seq_self_attention(
        pages.X, pages.additive_emission(pages.X, *ADDITIVE), mask=pages.PADDING
    )
    assert weight[1, :3, 3:].min() > 0
    # Without a mask: what theirs computes for real tokens.
    pages.close(layer(pages.X)[1, :3], theirs[1, :3])
    # With it: what theirs computes for the text without padding.
    alone = pages.X[1:, :3]
    expected, _ = pages.seq_self_attention(alone, pages.additive_emission(alone, *ADDITIVE))
    pages.close(layer(pages.X, query_mask=pages.PADDING)[1:, :3], expected)


def test_widths_had_no_effect_in_version_0_46():
    lower = np.arange(pages.T)[:, None] - 1
    assert not ((np.arange(pages.T) < lower) & (lower + 3 <= np.arange(pages.T))).any()


def test_activation_of_scores():
    names = pages.page("keras_self_attention")
    layer = ka.Attention(score=names["SigmoidAdditive"](6))
    layer.build(pages.X.shape)
    names["load_additive"](layer.score, *ADDITIVE)
    layer.score.score_bias.assign(ADDITIVE[-1][0])
    emission = pages.additive_emission(pages.X, *ADDITIVE)
    expected, _ = pages.seq_self_attention(
        pages.X, emission, activation=lambda e: 1 / (1 + np.exp(-e))
    )
    pages.close(layer(pages.X), expected)


def test_the_regularizer_of_seq_self_attention():
    diverse = pages.page("keras_self_attention")["Diverse"](0.5)
    layer = ka.Attention(score=scores.Additive(6), scores_regularizer=diverse)
    layer.build(pages.X.shape)
    pages.page("keras_self_attention")["load_additive"](layer.score, *ADDITIVE)
    layer(pages.X)
    _, a = pages.seq_self_attention(pages.X, pages.additive_emission(pages.X, *ADDITIVE))
    expected = 0.5 * np.sum((a @ np.swapaxes(a, 1, 2) - np.eye(pages.T)) ** 2) / pages.B
    pages.close(layer.losses[0], expected)


@pytest.mark.parametrize("mask", [None, pages.PADDING], ids=["no mask", "mask"])
def test_seq_weighted_attention(mask):
    W, b = pages.weights((pages.D, 1), (1,))
    logits = (pages.X @ W + b)[..., 0]
    if mask is not None:
        logits = logits - 10000.0 * (1.0 - mask)
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weight = e / (e.sum(axis=1, keepdims=True) + 1e-7)
    layer = ka.FeedForwardAttention(activation=None)
    layer.build(pages.X.shape)
    pages.page("keras_self_attention")["load_weighted"](layer, W, b)
    output, our_weight = layer(pages.X, mask=mask, return_attention_scores=True)
    pages.close(output, np.sum(pages.X * weight[..., None], axis=1))
    pages.close(our_weight[:, 0, 0], weight)


@pytest.mark.parametrize("history_only", [False, True])
def test_scaled_dot_product_attention(history_only):
    layer = ka.Attention(pattern="causal" if history_only else None)
    pages.close(
        layer([pages.X, pages.MEMORY, pages.KEY], key_mask=pages.MEMORY_PADDING),
        pages.scaled_dot_product_attention(
            pages.X, pages.KEY, pages.MEMORY, history_only, pages.MEMORY_PADDING
        ),
    )
