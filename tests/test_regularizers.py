"""Losses on attention weights, against their equations in loops."""

import itertools
import json
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
    scores = random(B, H, T, S)
    powers = np.exp(scores) * mask
    totals = powers.sum(-1, keepdims=True)
    return (powers / np.where(totals > 0, totals, 1)).astype("float32")


def doubly_stochastic(weights, mask, target):
    total = 0.0
    for b, h in np.ndindex(B, H):
        seen = [s for s in range(S) if any(mask[b, h, t, s] for t in range(T))]
        asking = [t for t in range(T) if any(mask[b, h, t, s] for s in range(S))]
        wanted = len(asking) / len(seen) if target is None else target
        total += sum((wanted - sum(weights[b, h, t, s] for t in range(T))) ** 2 for s in seen)
    return total / (B * H)


def entropy(weights, mask):
    found = [
        -sum(w * math.log(w) for w in weights[b, h, t] if w > 0)
        for b, h, t in np.ndindex(B, H, T)
        if mask[b, h, t].any()
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("target", [1.0, None, 0.5])
def test_doubly_stochastic_is_its_equation(masked, target):
    mask = np.broadcast_to(MASK if masked else True, (B, H, T, S))
    weights = weights_of(mask)
    regularizer = regularizers.DoublyStochastic(0.3, target)
    found = regularizer(
        keras.ops.convert_to_tensor(weights), keras.ops.convert_to_tensor(MASK) if masked else None
    )
    expected = 0.3 * doubly_stochastic(weights, mask, target)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_entropy_is_its_equation(masked):
    mask = np.broadcast_to(MASK if masked else True, (B, H, T, S))
    weights = weights_of(mask)
    found = regularizers.Entropy(-0.3)(
        keras.ops.convert_to_tensor(weights), keras.ops.convert_to_tensor(MASK) if masked else None
    )
    np.testing.assert_allclose(numpy(found), -0.3 * entropy(weights, mask), rtol=1e-5)


def coverage(weights, mask):
    found = [
        sum(min(weights[b, h, t, s], sum(weights[b, h, :t, s])) for s in range(S))
        for b, h, t in np.ndindex(B, H, T)
        if mask[b, h, t].any()
    ]
    return sum(found) / len(found)


def guided(weights, mask, width):
    total = 0.0
    for b, h in np.ndindex(B, H):
        queries = [t for t in range(T) if mask[b, h, t].any()]
        keys = [s for s in range(S) if mask[b, h, :, s].any()]
        for (n, t), (m, s) in itertools.product(enumerate(queries), enumerate(keys)):
            distance = n / len(queries) - m / len(keys)
            away = 1 - math.exp(-(distance**2) / (2 * width**2))
            total += weights[b, h, t, s] * away / (len(queries) * len(keys))
    return total / (B * H)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
def test_coverage_and_guided_are_their_equations(padding):
    given = {"none": None, "right": MASK, "left": MASK[:, :, ::-1, ::-1]}[padding]
    mask = np.broadcast_to(True if given is None else given, (B, H, T, S))
    weights = weights_of(mask)
    tensors = keras.ops.convert_to_tensor(weights), None
    if given is not None:
        tensors = tensors[0], keras.ops.convert_to_tensor(given.copy())
    found = regularizers.CoverageLoss(0.3)(*tensors)
    wide = weights.astype("float64")
    np.testing.assert_allclose(numpy(found), 0.3 * coverage(wide, mask), rtol=1e-5)
    found = regularizers.Guided(0.3, width=0.4)(*tensors)
    np.testing.assert_allclose(numpy(found), 0.3 * guided(wide, mask, 0.4), rtol=1e-5)


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


@keras.saving.register_keras_serializable(package="test_regularizers")
class Peaked(regularizers.Regularizer):
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, weights, mask):
        return -self.factor * keras.ops.mean(keras.ops.max(weights, axis=-1))


@pytest.mark.parametrize(
    "given", ["entropy", regularizers.DoublyStochastic(0.2, None), Peaked(0.1)], ids=repr
)
def test_it_is_saved_with_the_model_and_trained_on(given, tmp_path):
    symbol = keras.Input((None, D))
    layer = ka.MultiHeadAttention(H, 4, scores_regularizer=given)
    model = keras.Model(symbol, layer(symbol))
    model.compile("sgd", "mse")
    x = random(B, T, D)
    loss = model.evaluate(x, numpy(model(x)), verbose=0)
    assert loss != 0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found = loaded.get_layer(layer.name).scores_regularizer
    assert found == layer.scores_regularizer
    np.testing.assert_allclose(loaded.evaluate(x, numpy(model(x)), verbose=0), loss, rtol=1e-5)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(found)))
    assert regularizers.get(config) == found


def test_what_segments_and_patterns_cut_off_is_left_out():
    x = random(1, 4, D, seed=1)
    ids = np.array([[1, 1, 2, 3]])
    by_segments, by_mask = (
        ka.Attention(
            normalization="sparsemax", scores_regularizer=regularizers.Entropy(), pattern=pattern
        )
        for pattern in (~ka.patterns.Dilated(1), None)
    )
    by_segments(x, segment_ids=ids)
    by_mask(x, attention_mask=np.zeros((4, 4), bool))
    assert float(by_segments.losses[0]) == float(by_mask.losses[0]) == 0
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
