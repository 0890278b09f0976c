"""Local, atrous and sparse self-attention: dense attention under a mask written as loops."""

import itertools

import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import close, random, run

B, T, D = 2, 11, 8


def loops(length, attends):
    """The mask (T, T) of a rule on two positions."""
    return np.array([[attends(i, j) for j in range(length)] for i in range(length)])


# Name: the layer, and the rule of the table in docs/design.md, in other words than its patterns.
PRESETS = {
    "local": (
        lambda **kwargs: ka.LocalSelfAttention(2, 4, neighbors=2, **kwargs),
        lambda i, j: j in (i - 2, i - 1, i, i + 1, i + 2),
    ),
    "local, every third": (
        lambda **kwargs: ka.LocalSelfAttention(2, 4, neighbors=2, rate=3, **kwargs),
        lambda i, j: j in (i - 6, i - 3, i, i + 3, i + 6),
    ),
    "local, beyond the ends": (
        lambda **kwargs: ka.LocalSelfAttention(2, 4, neighbors=50, **kwargs),
        lambda i, j: True,
    ),
    "atrous": (
        lambda **kwargs: ka.AtrousSelfAttention(2, 4, rate=3, **kwargs),
        lambda i, j: i % 3 == j % 3,
    ),
    "atrous, beyond the ends": (
        lambda **kwargs: ka.AtrousSelfAttention(2, 4, rate=40, **kwargs),
        lambda i, j: i == j,
    ),
    "sparse": (
        lambda **kwargs: ka.SparseSelfAttention(2, 4, rate=3, **kwargs),
        lambda i, j: i % 3 == j % 3 or j in (i - 2, i - 1, i, i + 1, i + 2),
    ),
    "sparse, every one": (
        lambda **kwargs: ka.SparseSelfAttention(2, 4, rate=1, **kwargs),
        lambda i, j: True,
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_dense_attention_under_its_mask(name):
    """With a pattern of the user's, and a causal call, too."""
    make, attends = PRESETS[name]
    rules = {
        "plain": ({}, {}, attends),
        "causal": ({"causal": True}, {}, lambda i, j: attends(i, j) and j <= i),
        "causal call": ({}, {"use_causal_mask": True}, lambda i, j: attends(i, j) and j <= i),
        "pattern": (
            {"pattern": ~ka.patterns.Prefix(2)}, {}, lambda i, j: attends(i, j) and j >= 2
        ),
    }  # fmt: skip
    dense, x = ka.SelfAttention(2, 4, use_bias=True), random(B, T, D)
    dense.build(x.shape)
    layers = {kind: make(use_bias=True, **given) for kind, (given, *_) in rules.items()}
    for layer in layers.values():
        layer.build(x.shape)
        layer.set_weights(dense.get_weights())
    masks = {kind: loops(T, rule) for kind, (*_, rule) in rules.items()}

    def both(x):
        found, scores = [], {"return_attention_scores": True}
        for kind, (_, call, _) in rules.items():
            found += layers[kind](x, **scores, **call)
            found += dense(x, attention_mask=masks[kind], **scores)
            found += [layers[kind](x[:, :2], **call)]
            found += [dense(x[:, :2], attention_mask=masks[kind][:2, :2])]
        return found

    answers = iter(run(both, x))
    for mask in masks.values():
        output, weights, *expected, few, expected_few = itertools.islice(answers, 6)
        for found, other in zip((output, weights, few), (*expected, expected_few), strict=True):
            close(found, other)
        np.testing.assert_array_equal(weights > 0, np.broadcast_to(mask, weights.shape))
