"""Differential attention: its equation, masks of heads, and its cache."""

import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import built, close, random, wide
from tests.compiled import call

H, G, K, V = 4, 2, 3, 6
B, T, D = 2, 5, 8
X = random(B, T, D)
KEPT = np.array([[True] * 5, [False, True, True, True, False]])


def layer(**options):
    options = {"num_key_value_heads": G, "depth": 3, "use_bias": True, **options}
    return built(ka.DifferentialAttention(H, K, **options), X.shape)


def softmax(scores, allowed):
    powers = np.exp(scores) * allowed
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300)


def definition(layer, x, allowed, kept, factor=1.0):
    """The output and the weights in float64 NumPy, one head at a time, times a factor of them."""
    w = {"/".join(w.path.split("/")[-2:]): wide(w) for w in layer.weights}
    vectors = [wide(layer.lambda_query), wide(layer.lambda_key)]
    x = np.where(kept[..., None], x, 0).astype("float64")
    query, key, value = (
        np.einsum("btd,dhk->bhtk", x, w[f"{role}/kernel"]) + w[f"{role}/bias"][:, None]
        for role in ("query", "key", "value")
    )
    start = 0.8 - 0.6 * np.exp(-0.3 * 2)
    first, second = np.exp(np.sum(vectors[0] * vectors[1], axis=-1))
    output, weights = np.zeros((B, T, D)), np.zeros((B, H, T, T))
    each = H // G
    for head in range(H):
        group, number = divmod(head, each)
        maps = []
        for side in range(2):
            q, k = query[:, (2 * group + side) * each + number], key[:, 2 * group + side]
            maps.append(softmax(q @ k.transpose(0, 2, 1) / np.sqrt(K), allowed))
        weights[:, head] = maps[0] - (first - second + start) * maps[1]
        weights[:, head] *= np.broadcast_to(factor, weights.shape)[:, head]
        both = np.concatenate([value[:, 2 * group], value[:, 2 * group + 1]], axis=-1)
        found = weights[:, head] @ both
        found /= np.sqrt(np.mean(found**2, axis=-1, keepdims=True) + 1e-5)
        found *= w["head_norm/scale"] * (1 - start)
        output += found @ w["attention_output/kernel"][head]
    return (output + w["attention_output/bias"]) * kept[..., None], weights * kept[:, None, :, None]


def test_it_is_the_equation():
    found = layer()
    allowed = np.tril(np.ones((T, T), "bool")) & KEPT[:, None]
    given = call(
        found,
        X,
        query_mask=KEPT,
        value_mask=KEPT,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    for ours, expected in zip(given, definition(found, X, allowed, KEPT), strict=True):
        close(wide(ours), expected)


@pytest.mark.any_backend
def test_a_seed_draws_two_vectors():
    """Equal ones would have equal gradients, and stay equal."""
    found = ka.DifferentialAttention(2, 4, seed=1)
    found.build((None, 3, 8))
    assert np.abs(wide(found.lambda_query) - wide(found.lambda_key)).min() > 1e-4


def test_a_mask_and_a_bias_per_head_are_of_both_attentions():
    found = layer()
    mask = np.random.default_rng(1).random((B, H, T, T)) < 0.6
    scores = wide(call(found, X, attention_mask=mask, return_attention_scores=True)[1])
    assert (scores[~mask] == 0).all() and (scores[mask] != 0).mean() > 0.9
    bias = np.where(mask, 0, -1e9).astype("float32")
    rows = mask.any(axis=-1)
    other = wide(call(found, X, attention_bias=bias, return_attention_scores=True)[1])
    close(other[rows], scores[rows])


def test_a_cache_stores_a_value_once():
    cache = layer().make_cache(B, T)
    assert cache["key"].shape == (B, 2 * G, T, K)
    assert cache["value"].shape == (B, 2 * G, T, V // 2)
