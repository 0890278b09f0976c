"""Local attention of Luong et al. 2015 against its equations, in loops."""

import math

import numpy as np
import pytest

import keras_attention as ka
from tests import definition
from tests.arrays import numpy, random

B, T, S, H, K, D = 2, 5, 9, 2, 3, 8


QUERY, MEMORY = random(B, T, D, seed=1), random(B, S, D, seed=2)


def predictive(query, key, value, kernel, vector, window, kept=None, score="scaled_dot"):
    """Output and weights by equations 7, 9 and 10, query by query; `kept` is (B, S)."""
    batch, queries, heads, _ = query.shape
    keys = key.shape[1]
    kept = np.ones((batch, keys), bool) if kept is None else kept
    weights = np.zeros((batch, heads, queries, keys))
    output = np.zeros((batch, queries, heads, value.shape[-1]))
    for b in range(batch):
        real = [s for s in range(keys) if kept[b, s]]
        for h in range(heads):
            for t in range(queries):
                hidden = [math.tanh(x) for x in query[b, t, h] @ kernel[h]]
                share = 1 / (1 + math.exp(-sum(hidden * vector[h, :, 0])))
                center = len(real) * share
                window_of_t = [
                    (index, s) for index, s in enumerate(real) if abs(index - center) <= window
                ]
                if not window_of_t:
                    continue
                aligned = definition.normalize(
                    [
                        definition.pair_score(query[b, t, h], key[b, s, h], score)
                        for _, s in window_of_t
                    ]
                )
                for (index, s), weight in zip(window_of_t, aligned, strict=True):
                    sigma = window / 2
                    gaussian = math.exp(-((index - center) ** 2) / (2 * sigma**2))
                    weights[b, h, t, s] = weight * gaussian
                    output[b, t, h] += weights[b, h, t, s] * value[b, s, h]
    return output, weights


def heads_of(layer, query, memory):
    dense = layer.query_dense, layer.key_dense, layer.value_dense
    return [
        (x @ numpy(d.kernel)).reshape(len(x), -1, H, K).astype("float64")
        for x, d in zip((query, memory, memory), dense, strict=True)
    ]


def made(**kwargs):
    """A layer whose centers differ: glorot's would all lie near the middle."""
    layer = ka.LocalAttention(2, "predictive", H, K, score="scaled_dot", units=4, **kwargs)
    layer.build(QUERY.shape, MEMORY.shape)
    layer.centre_kernel.assign(2 * random(H, K, 4, seed=3))
    layer.centre_vector.assign(2 * random(H, 4, 1, seed=4))
    return layer


KEPT = {
    "whole": None,
    "right-padded": np.arange(S) < np.array([[S], [6]]),
    "left-padded": np.arange(S) >= np.array([[2], [0]]),
    "empty": np.arange(S) < np.array([[0], [4]]),
}


@pytest.mark.parametrize("padding", KEPT)
def test_predictive_is_its_equations(padding):
    layer, kept = made(), KEPT[padding]
    output, weights = layer(QUERY, MEMORY, value_mask=kept, return_attention_scores=True)
    center = numpy(layer.centre_kernel), numpy(layer.centre_vector)
    expected, expected_weights = predictive(*heads_of(layer, QUERY, MEMORY), *center, 2, kept)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(numpy(output), expected.reshape(B, T, H * K), rtol=1e-4, atol=1e-5)
    assert (numpy(weights) > 0).sum(-1).max() <= 2 * 2 + 1


def test_without_projections_the_inputs_predict():
    layer = ka.LocalAttention(3, "predictive", score="dot")
    layer.build(QUERY.shape, MEMORY.shape)
    assert layer.centre_kernel.shape == (1, D, D)
    _, weights = layer(QUERY, MEMORY, return_attention_scores=True)
    heads = [x[:, :, None].astype("float64") for x in (QUERY, MEMORY, MEMORY)]
    center = numpy(layer.centre_kernel), numpy(layer.centre_vector)
    _, expected = predictive(*heads, *center, 3, score="dot")
    np.testing.assert_allclose(numpy(weights), expected, rtol=1e-4, atol=1e-6)


def test_monotonic_is_a_window_round_the_query():
    layer = ka.LocalAttention(2, score="dot")
    output, weights = layer(QUERY, MEMORY, return_attention_scores=True)
    near = np.abs(np.arange(T)[:, None] - np.arange(S)) <= 2
    heads = [x[:, :, None] for x in (QUERY, MEMORY, MEMORY)]
    expected, expected_weights = definition.attend(*heads, score="dot", mask=near)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(numpy(output), expected[:, :, 0], rtol=1e-4, atol=1e-5)
    shifted = layer(QUERY, MEMORY, positions=(np.arange(T) + 3, None), return_attention_scores=True)
    near = np.abs(np.arange(T)[:, None] + 3 - np.arange(S)) <= 2
    _, expected_weights = definition.attend(*heads, score="dot", mask=near)
    np.testing.assert_allclose(numpy(shifted[1]), expected_weights, rtol=1e-4, atol=1e-6)


def test_a_sink_takes_its_share_before_the_gaussian():
    layer, plain = made(use_sink=True), made()
    plain.set_weights([w for w in layer.get_weights() if w.shape != (H,)])
    sink = random(H, seed=9)
    layer.sink.assign(sink)
    found = numpy(layer(QUERY, MEMORY, return_attention_scores=True)[1])
    expected = numpy(plain(QUERY, MEMORY, return_attention_scores=True)[1])
    # What softmax gives with one more score is what it gives without, times one share per query.
    share = found.sum(-1) / expected.sum(-1)
    np.testing.assert_allclose(found, expected * share[..., None], rtol=1e-4, atol=1e-6)
    assert (share < 1).all()
