"""Losses on attention weights, against their equations in loops."""

import itertools
import math

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import regularizers
from tests.arrays import numpy, random
from tests.gradients import added_losses, gradients

B, H, T, S, D = 2, 2, 4, 6, 8


# The second row has two keys, the first has a query less.
KEPT = np.arange(S) < np.array([[S], [2]])
REAL = np.arange(T) < np.array([[T - 1], [T]])
MASK = REAL[:, None, :, None] & KEPT[:, None, None]


def weights_of(mask):
    powers = np.exp(random(B, H, T, S)) * mask
    totals = powers.sum(-1, keepdims=True)
    return (powers / np.where(totals > 0, totals, 1)).astype("float32")


# Equations: functions of the weights (T, S) of a head and of the queries and keys that count.


def doubly_stochastic(target):
    def equation(weights, queries, keys):
        wanted = len(queries) / len(keys) if target is None else target
        return [sum((wanted - sum(weights[:, s])) ** 2 for s in keys)]

    return equation


def entropy(weights, queries, keys):
    return [-sum(w * math.log(w) for w in weights[t] if w > 0) for t in queries]


def coverage(weights, queries, keys):
    return [sum(min(weights[t, s], sum(weights[:t, s])) for s in range(S)) for t in queries]


def guided(weights, queries, keys):
    total = 0.0
    for (n, t), (m, s) in itertools.product(enumerate(queries), enumerate(keys)):
        distance = n / len(queries) - m / len(keys)
        total += weights[t, s] * (1 - math.exp(-(distance**2) / (2 * 0.4**2)))
    return [total / (len(queries) * len(keys))]


EQUATIONS = {
    "to one": (regularizers.DoublyStochastic(0.3), doubly_stochastic(1.0)),
    "to a half": (regularizers.DoublyStochastic(0.3, 0.5), doubly_stochastic(0.5)),
    "to equal shares": (regularizers.DoublyStochastic(0.3, None), doubly_stochastic(None)),
    "entropy": (regularizers.Entropy(-0.3), entropy),
    "coverage": (regularizers.CoverageLoss(0.3), coverage),
    "guided": (regularizers.Guided(0.3, width=0.4), guided),
}


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_a_loss_is_the_mean_of_its_equation(name, padding):
    regularizer, equation = EQUATIONS[name]
    given = {"none": None, "right": MASK, "left": MASK[:, :, ::-1, ::-1].copy()}[padding]
    mask = np.broadcast_to(True if given is None else given, (B, H, T, S))
    weights, losses = weights_of(mask), []
    for b, h in np.ndindex(B, H):
        queries, keys = (np.flatnonzero(mask[b, h].any(axis)) for axis in (1, 0))
        losses += equation(weights[b, h].astype("float64"), queries, keys)
    found = regularizer(
        keras.ops.convert_to_tensor(weights),
        None if given is None else keras.ops.convert_to_tensor(given),
    )
    np.testing.assert_allclose(numpy(found), regularizer.factor * np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize("name", regularizers.BUILTIN)
def test_a_layer_adds_the_loss_of_its_weights(name):
    x, memory = random(B, T, D, seed=1), random(B, S, D, seed=2)
    plain = ka.MultiHeadAttention(H, 4)
    layer = ka.MultiHeadAttention(H, 4, scores_regularizer=name)
    for one in (plain, layer):
        one.build(x.shape, memory.shape)
    layer.set_weights(plain.get_weights())
    given = {"query_mask": REAL, "value_mask": KEPT}
    expected, weights = plain(x, memory, return_attention_scores=True, **given)
    np.testing.assert_allclose(numpy(layer(x, memory, **given)), numpy(expected), rtol=1e-6)
    loss = regularizers.get(name)(weights, keras.ops.convert_to_tensor(MASK))
    assert len(layer.losses) == 1
    np.testing.assert_allclose(numpy(layer.losses[0]), numpy(loss), rtol=1e-5)


@pytest.mark.parametrize("name", regularizers.BUILTIN)
def test_gradients_are_finite_with_empty_rows_and_weights_of_zero(name):
    layer = ka.Attention(normalization="sparsemax", scores_regularizer=name)
    x, memory = 3 * random(B, T, D, seed=1), random(B, S, D, seed=2)
    layer.build(x.shape, memory.shape)
    kept = KEPT.copy()
    kept[1] = False

    def loss(query, value):
        kept_here = keras.ops.convert_to_tensor(kept)
        return added_losses(lambda: layer(query, value, value_mask=kept_here))

    for found in gradients(loss, [x, memory]):
        assert np.isfinite(found).all() and (found[1] == 0).all()


def test_what_segments_and_patterns_cut_off_is_left_out():
    x = random(1, 4, D, seed=1)
    ids = np.array([[1, 1, 2, 3]])
    options = {"normalization": "sparsemax", "scores_regularizer": "entropy"}
    nothing = ka.Attention(**options, pattern=~ka.patterns.Dilated(1))
    by_mask = ka.Attention(**options)
    nothing(x, segment_ids=ids)
    by_mask(x, attention_mask=np.zeros((4, 4), bool))
    assert float(nothing.losses[0]) == float(by_mask.losses[0]) == 0
    layer, same = (ka.Attention(scores_regularizer="entropy") for _ in range(2))
    layer(x, segment_ids=(ids, np.array([[1, 1, 1, 1]])))
    same(x, attention_mask=(ids[0, :, None] == 1) & np.ones((4, 4), bool))
    np.testing.assert_allclose(numpy(layer.losses[0]), numpy(same.losses[0]), rtol=1e-6)


@pytest.mark.parametrize("name", regularizers.BUILTIN)
@pytest.mark.parametrize("shape", [(0, H, T, S), (B, H, 0, S), (B, H, T, 0), (B, H, 0, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_weights_of_nothing_are_a_finite_loss(name, shape, masked):
    mask = keras.ops.ones(shape, "bool") if masked else None
    assert np.isfinite(numpy(regularizers.get(name)(keras.ops.ones(shape), mask)))
