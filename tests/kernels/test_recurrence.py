"""Sums over the past, and the gated delta rule, in chunks, against the recurrence in float64."""

import functools

import keras
import numpy as np
import pytest

from keras_attention.kernels.linear_time import delta, recurrence
from tests.arrays import numpy
from tests.compiled import compiled
from tests.gradients import gradients

B, T, H, G, K, V = 2, 21, 4, 2, 5, 3


def arrays(features, strength=0.5, delta=False):
    """Query, key and value, rates of the delta rule, and decays of so many features, or none."""
    rng = np.random.default_rng(0)
    found = [rng.normal(size=(B, T, *shape)) for shape in ((H, K), (G, K), (G, V))]
    if delta:
        found[1] /= np.linalg.norm(found[1], axis=-1, keepdims=True)
        found.append(rng.uniform(high=2.0, size=(B, T, G, 1)))
    if features is not None:
        found.append(-strength * rng.exponential(size=(B, T, G, features)))
    return [x.astype("float32") for x in found]


def definition(query, key, value, decay=0.0, rate=None):
    """Output and last state, by the recurrence; with rates, by the gated delta rule."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    decay = np.broadcast_to(decay, key.shape)
    state, outputs = np.zeros((B, G, K, V)), []
    for t in range(T):
        k, beta = key[:, t], 1.0 if rate is None else rate[:, t][..., None]
        if rate is not None:
            state = state - beta * np.einsum("bgk,bgl,bglv->bgkv", k, k, state)
        state = np.exp(decay[:, t])[..., None] * state + beta * k[..., None] * value[:, t, :, None]
        whole = np.repeat(state, H // G, axis=1)
        outputs.append(np.einsum("bhk,bhkv->bhv", query[:, t], whole))
    return np.stack(outputs, axis=1), state


def delta_definition(query, key, value, rate, decay=0.0):
    return definition(query, key, value, decay, rate)


def check(run, given, definition):
    """Whole chunks and pieces, output and state, are those of the definition."""
    expected, last = definition(*given)
    for chunk in (8, T):
        output, state = compiled(functools.partial(run, chunk=chunk), *given)
        np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(numpy(state), last, rtol=1e-4, atol=2e-5)
    state, outputs = None, []
    for cut in (slice(0, 10), slice(10, 11), slice(11, T)):
        piece = functools.partial(run, state=state, chunk=8)
        output, state = compiled(piece, *(x[:, cut] for x in given))
        outputs.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("features, strength", [(None, 0), (1, 0.5), (K, 0.5), (1, 5.0), (K, 2.5)])
def test_chunks_are_the_recurrence(features, strength):
    given = arrays(features, strength)
    if features == K:
        given[3] = np.maximum(given[3], recurrence.SMALLEST)
    check(recurrence.run, given, definition)


@pytest.mark.parametrize("decays", [True, False])
def test_chunks_are_the_delta_rule(decays):
    check(delta.run, arrays(1 if decays else None, 0.3, delta=True), delta_definition)


@pytest.mark.parametrize("features", [None, 1, K, "delta"])
def test_gradients_do_not_depend_on_chunks(features):
    run, given = recurrence.run, arrays(None if features == "delta" else features)
    if features == "delta":
        run, given = delta.run, arrays(1, 0.3, delta=True)

    def total(chunk):
        def function(*arrays):
            output, state = run(*arrays, chunk=chunk)
            return keras.ops.sum(keras.ops.square(output)), keras.ops.sum(state)

        return gradients(function, given)

    for one, other in zip(total(4), total(T), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(other).max())


def test_half_precision_sums_in_float32():
    given = arrays(1)
    expected = definition(*(x.astype("float16") for x in given[:3]), given[3])[0]
    halves = [keras.ops.convert_to_tensor(x, "float16") for x in given[:3]]
    output, state = recurrence.run(*halves, keras.ops.convert_to_tensor(given[3]), chunk=8)
    assert keras.backend.standardize_dtype(state.dtype) == "float32"
    np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=1e-4)
