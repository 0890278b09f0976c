"""Local, atrous and sparse self-attention: dense attention under a mask written as loops."""

import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import close, random, run

B, T, D = 2, 11, 8


def loops(length, attends, causal):
    """The mask (T, T) of a rule on two positions."""
    mask = np.zeros((length, length), bool)
    for i in range(length):
        for j in range(length):
            mask[i, j] = attends(i, j) and (j <= i or not causal)
    return mask


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
PADDING = np.array([[True] * T, [True] * 4 + [False] * 3 + [True] * 2 + [False] * 2])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_dense_attention_under_its_mask(name, causal):
    make, attends = PRESETS[name]
    layer, dense = make(causal=causal, use_bias=True), ka.SelfAttention(2, 4, use_bias=True)
    for each in (layer, dense):
        each.build((B, T, D))
    dense.set_weights(layer.get_weights())
    mask = loops(T, attends, causal)

    def both(x):
        given = {"return_attention_scores": True}
        ours = [*layer(x, **given), *layer(x, query_mask=PADDING, **given), layer(x[:, :2])]
        return [
            *ours,
            *dense(x, attention_mask=mask, **given),
            *dense(x, attention_mask=mask, query_mask=PADDING, **given),
            dense(x[:, :2], attention_mask=mask[:2, :2]),
        ]

    answers = run(both, random(B, T, D))
    for found, expected in zip(answers[:5], answers[5:], strict=True):
        close(found, expected)
    allowed = mask & PADDING[:, :, None] & PADDING[:, None]
    for weights, seen in ((answers[1], mask), (answers[3], allowed[:, None])):
        np.testing.assert_array_equal(weights > 0, np.broadcast_to(seen, weights.shape))
    assert (answers[2][~PADDING] == 0).all()


@pytest.mark.parametrize("name", ["local, every third", "atrous", "sparse"])
def test_a_pattern_of_the_users_and_a_causal_call_count_too(name):
    make, attends = PRESETS[name]
    layer = make(pattern=~ka.patterns.Prefix(2) | ka.patterns.Dilated(5))
    layer.build((B, T, D))

    def weights(x):
        given = {"return_attention_scores": True}
        return layer(x, **given)[1], layer(x, use_causal_mask=True, **given)[1]

    found = run(weights, random(B, T, D))
    for answer, causal in zip(found, (False, True), strict=True):
        mask = loops(T, lambda i, j: attends(i, j) and (j >= 2 or (i - j) % 5 == 0), causal)
        np.testing.assert_array_equal(answer > 0, np.broadcast_to(mask, answer.shape))
