"""Kerple, FIRE, XPos, Transformer-XL and CoPE: their equations, pair by pair, and their masks."""

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention, patterns, positions
from tests import definition, problems
from tests.arrays import numpy, random
from tests.gradients import gradients

B, T, H, G, K, D = 2, 6, 4, 2, 4, 8
KINDS = {
    "kerple": positions.Kerple,
    "kerple-power": lambda: positions.Kerple("power"),
    "fire": lambda: positions.FIRE(3, threshold=2.5, scale=0.5),
    "xpos": lambda: positions.XPos(3.0, gamma=0.2, dim=2),
    "transformer_xl": lambda: positions.TransformerXL(6, max_wavelength=50),
    "cope": lambda: positions.CoPE(2),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def kerple(weights, query, key, i, j, h, visible):
    rates = np.exp([weights[0][h], weights[1][h]])
    return query @ key[j, h] / 2 - rates[0] * np.log(1 + rates[1] * abs(i - j))


def kerple_power(weights, query, key, i, j, h, visible):
    rate, power = np.exp(weights[0][h]), 2 / (1 + np.exp(-weights[1][h]))
    return query @ key[j, h] / 2 - rate * abs(i - j) ** power


def fire(weights, query, key, i, j, h, visible):
    c, factor, kernel, bias, out = weights
    share = np.log(1 + abs(c) * abs(i - j)) / np.log(1 + abs(c) * max(i, 2.5 * abs(factor)))
    return query @ key[j, h] / 2 + np.maximum(kernel * share + bias, 0) @ out[:, h]


def rotated(x, angle):
    first, second = x[:2]
    turned = first * np.cos(angle) - second * np.sin(angle)
    return np.array([turned, first * np.sin(angle) + second * np.cos(angle), *x[2:]])


def xpos(weights, query, key, i, j, h, visible):
    # One pair of features is rotated and decays, the others stay as they are.
    q, k = rotated(query, i), rotated(key[j, h], j)
    decay = (0.2 / 1.2) ** ((i - j) / 3.0)
    return (q[:2] @ k[:2] * decay + q[2:] @ k[2:]) / 2


def transformer_xl(weights, query, key, i, j, h, visible):
    kernel, u, v = weights
    theta = 50.0 ** (-np.arange(0, 6, 2) / 6)
    r = np.concatenate([np.sin((i - j) * theta), np.cos((i - j) * theta)])
    return ((query + u[h]) @ key[j, h] + (query + v[h]) @ (r @ kernel[:, h])) / 2


def cope(weights, query, key, i, j, h, visible):
    gates = [1 / (1 + np.exp(-query @ key[s, h] / 2)) for s in range(j, i + 1) if visible[s]]
    count = min(sum(gates), 2)
    low = min(int(count), 1)
    term = (1 - count + low) * weights[0][low] + (count - low) * weights[0][low + 1]
    return query @ key[j, h] / 2 + query @ term


EQUATIONS = {
    "kerple": kerple,
    "kerple-power": kerple_power,
    "fire": fire,
    "xpos": xpos,
    "transformer_xl": transformer_xl,
    "cope": cope,
}


def made(kind, **arguments):
    arguments = {"num_key_value_heads": G, "use_bias": False, **arguments}
    layer = MultiHeadAttention(H, K, position=KINDS[kind](), **arguments)
    layer.build((B, T, D), (B, T, D))
    layer.set_weights([random(*w.shape, seed=n) / 2 for n, w in enumerate(layer.weights)])
    return layer


def float64(arrays):
    return [numpy(array).astype("float64") for array in arrays]


def expected_of(kind, weights, heads, mask):
    """The output before its projection and the weights, by the equation; `mask` is (B, T, T)."""
    query, key, value = heads
    scores = np.zeros((B, H, T, T))
    for b, h, t, s in np.ndindex(scores.shape):
        if mask[b, t, s]:
            q, seen = query[b, t, h], mask[b, t]
            scores[b, h, t, s] = EQUATIONS[kind](weights, q, key[b], t, s, h, seen)
    return definition.attend(0 * query, key, value, bias=scores, mask=mask[:, None])


def heads_of(layer, x):
    query, key, value = float64(layer.split_all(*map(keras.ops.array, [x] * 3)))
    return query, *(np.repeat(a, H // G, axis=2) for a in (key, value))


# Padding at the end of one row, and a window.
REAL = np.arange(T) < np.array([[T], [4]])
BACK = np.arange(T)[:, None] - np.arange(T)
MASK = (BACK >= 0) & (BACK <= 3) & REAL[:, None]


@each_kind
def test_scores_are_the_equation(kind):
    layer, x = made(kind, pattern=patterns.SlidingWindow(3, 0)), random(B, T, D)
    _, found = layer(x, value_mask=REAL, use_causal_mask=True, return_attention_scores=True)
    _, expected = expected_of(kind, float64(layer.position.weights), heads_of(layer, x), MASK)
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-4, atol=1e-5)
    # The same numbers, given: a lookup of positions that may not be consecutive.
    at = np.tile(np.arange(T), (B, 1))
    _, given = layer(x, value_mask=REAL, positions=at, return_attention_scores=True)
    np.testing.assert_allclose(numpy(given), expected, rtol=1e-4, atol=1e-5)


@each_kind
def test_gradients_are_those_of_the_equation_in_every_kernel(kind):
    layer, x = made(kind), random(B, T, D)
    layer._output_dense.kernel.assign(random(H, K, D, seed=9))
    causal = np.broadcast_to(BACK >= 0, (B, T, T))
    variables = layer.position.trainable_variables

    def total(*weights):
        mapping = list(zip(variables, weights, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            output = layer(x, use_causal_mask=True)
        return keras.ops.sum(keras.ops.sin(output))

    if not variables:
        pytest.skip("It has no weights.")
    weights = [numpy(variable) for variable in variables]
    wide = float64(weights)
    with problems.blocks_of(3, 3):
        found = gradients(total, weights)
    heads, kernel = heads_of(layer, x), numpy(layer._output_dense.kernel).astype("float64")

    def expected(*weights):
        output, _ = expected_of(kind, weights, heads, causal)
        return np.sin(np.einsum("bthv,hvd->btd", output, kernel)).sum()

    # Along two directions, of all weights together.
    for seed in (1, 2):
        steps = float64(random(*np.shape(w), seed=seed) for w in weights)
        ends = [
            expected(*(w + sign * 1e-6 * s for w, s in zip(wide, steps, strict=True)))
            for sign in (1, -1)
        ]
        slope = sum(np.sum(g * s) for g, s in zip(found, steps, strict=True))
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=2e-3, atol=2e-3)


# XPos of long texts


@pytest.mark.parametrize("start", [0, 10**6])
def test_xpos_neither_overflows_nor_depends_on_where_a_text_begins(start):
    position = positions.XPos()
    query, key = random(1, 3, 1, K, seed=1), random(1, 4, 1, K, seed=2)
    distances = np.array([0, 10, 900, 50000])
    at, key_at = start + 50000 + np.arange(3), start + 50000 - distances
    q, k = (
        numpy(x).astype("float64")
        for x in position.encode(*map(keras.ops.array, (query, key)), at, key_at)
    )
    found = np.einsum("bthk,bshk->ts", q, k)
    scales = (np.arange(2) / 2 + 0.4) / 1.4
    for t, s in np.ndindex(found.shape):
        apart = at[t] - key_at[s]
        q, k = query[0, t, 0].astype("float64"), key[0, s, 0].astype("float64")
        angle = np.array([1.0, 0.01]) * apart
        real = (q[:2] + 1j * q[2:]) * np.exp(1j * angle) * np.conj(k[:2] + 1j * k[2:])
        expected = np.sum(real.real * scales ** (apart / 512))
        np.testing.assert_allclose(found[t, s], expected, rtol=1e-4, atol=1e-5)
