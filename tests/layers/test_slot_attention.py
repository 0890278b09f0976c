"""`SlotAttention` against algorithm 1 of its paper, its symmetries, its padding and its draws."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import visualization
from keras_attention.sequences import masks
from tests.arrays import built, close, numpy, random, wide
from tests.definition import softmax
from tests.layers.test_attention_cell import gru
from tests.layers.test_equations import dense, named, rms

B, S, D, K, F = 2, 6, 5, 3, 4
X, SLOTS = random(B, S, D), random(B, K, F, seed=1)
KEPT = np.array([[True] * 6, [False, True, True, False, True, False]])


def made(**kwargs):
    """A layer with random weights."""
    return built(ka.SlotAttention(K, F, 8, **kwargs), X.shape)


@pytest.fixture(scope="module")
def layer():
    return made()


def algorithm(layer, w, x, slots):
    """Algorithm 1 for one set (S, D) in float64: the slots, and the last weights (K, S)."""

    def normalized(x, name):
        centered = x - x.mean(-1, keepdims=True)
        return rms(centered, w[f"{name}/gamma"], 1e-5) + w[f"{name}/beta"]

    x, slots = normalized(x.astype("float64"), "input_norm"), slots.astype("float64")
    key, value = dense(w, "attention/key", x), dense(w, "attention/value", x)
    for _ in range(layer.num_iterations):
        query = dense(w, "attention/query", normalized(slots, "slots_norm"))
        attn = softmax(key @ query.T / np.sqrt(F))  # over the slots
        mean = attn + layer.epsilon
        mean = mean / mean.sum(axis=0, keepdims=True) if len(x) else mean
        slots, _ = gru(layer._cell, mean.T @ value, [slots])
        hidden = dense(w, "network/intermediate", normalized(slots, "network_norm"))
        slots = slots + dense(w, "network/output", np.maximum(hidden, 0))
    return slots, attn.T


def expected(layer, slots, kept=None):
    """The outputs of all rows, and the weights, without their masked elements."""
    kept = np.ones((B, S), bool) if kept is None else kept
    found = [
        algorithm(layer, named(layer), x[k], s) for x, k, s in zip(X, kept, slots, strict=True)
    ]
    outputs, weights = zip(*found, strict=True)
    scores = np.zeros((B, 1, slots.shape[1], S))
    for row, k, of in zip(scores, kept, weights, strict=True):
        row[0][:, k] = of
    return np.stack(outputs), scores


def test_orthogonal_weights_in_bfloat16():
    """Which backends cannot decompose."""
    layer = ka.SlotAttention(K, F, 8, dtype="bfloat16")
    layer.build(X.shape)
    kernel = numpy(keras.ops.cast(layer._cell.recurrent_kernel, "float32"))
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(F), atol=0.03)


@pytest.mark.parametrize(
    "kwargs",
    [{"num_iterations": 2}, {"initial": "learned", "epsilon": 0.3, "use_bias": True}],
    ids=str,
)
def test_it_is_algorithm_1(kwargs):
    layer = made(**kwargs)
    slots = SLOTS
    if layer.initial == "learned":
        slots = np.broadcast_to(numpy(layer._initial_slots.queries), (B, K, F))
        close(layer(X), expected(layer, slots)[0])
    output, scores = layer(X, slots, mask=KEPT, return_attention_scores=True)
    for found, of in zip((output, scores), expected(layer, slots, KEPT), strict=True):
        close(found, of)
    np.testing.assert_allclose(numpy(scores)[:, 0].sum(1), KEPT, atol=1e-6)


def test_first_slots_are_drawn_from_the_learned_distribution():
    layer = made(seed=7, num_iterations=1)
    w = named(layer)
    noise = wide(keras.random.normal((B, K, F), seed=keras.random.SeedGenerator(7)))
    slots = w["initial/mean"] + np.exp(w["initial/log_deviation"]) * noise
    close(layer(X), expected(layer, slots)[0])
    # Others in each call, also in a model at inference.
    symbol = keras.Input((None, D))
    model = keras.Model(symbol, layer(symbol))
    first, second = (model.predict(X, verbose=0) for _ in range(2))
    assert np.abs(first - second).max() > 1e-2


def test_without_elements_slots_are_updated_by_zeros(layer):
    kept = KEPT & [[False], [True]]
    output, scores = layer(X, SLOTS, mask=kept, return_attention_scores=True)
    close(output, expected(layer, SLOTS, kept)[0])
    np.testing.assert_array_equal(numpy(scores)[0], 0.0)


def test_a_masked_slot_takes_no_part(layer):
    real = np.array([[True, False, True], [True, True, True]])
    slots = np.where(real[..., None], SLOTS, np.nan).astype("float32")
    output, scores = layer(X, slots, slots_mask=real, return_attention_scores=True)
    alone, of_alone = layer(X[:1], SLOTS[:1, [0, 2]], return_attention_scores=True)
    close(output[:1], np.insert(numpy(alone), 1, 0.0, axis=1))
    close(scores[:1], np.insert(numpy(of_alone), 1, 0.0, axis=2))
    close(output[1:], expected(layer, SLOTS)[0][1:])
    carried = masks.carry(*map(keras.ops.convert_to_tensor, (slots, real)))
    again = layer(X, carried)
    np.testing.assert_array_equal(numpy(again), numpy(output))
    np.testing.assert_array_equal(numpy(masks.implicit(again)), real)


def test_weights_of_each_update_are_collected(layer):
    symbol = keras.Input((None, D))
    model = keras.Model(symbol, layer(symbol))
    found = visualization.collect_attention(model, X)
    assert [name.split(" ")[0] for name in found] == [f"{layer.name}/attention"] * 3
    for weights in found.values():
        np.testing.assert_allclose(weights[:, 0].sum(1), 1.0, atol=1e-6)
