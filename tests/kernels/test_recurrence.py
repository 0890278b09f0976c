"""Sums over the past, and the gated delta rule, in chunks, against the recurrence in float64."""

import keras
import numpy as np
import pytest

from keras_attention.kernels.linear_time import delta, recurrence
from tests.arrays import numpy
from tests.gradients import gradients

B, T, H, G, K, V = 2, 21, 4, 2, 5, 3


def arrays(features, strength=0.5):
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(B, T, H, K)), rng.normal(size=(B, T, G, K))
    value = rng.normal(size=(B, T, G, V))
    decay = [] if features is None else [-strength * rng.exponential(size=(B, T, G, features))]
    return [x.astype("float32") for x in (query, key, value, *decay)]


def definition(query, key, value, decay=None):
    """Output and last state, by the recurrence."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    decay = np.zeros_like(key) if decay is None else np.broadcast_to(decay, key.shape)
    state, outputs = np.zeros((B, G, K, V)), []
    for t in range(T):
        state = np.exp(decay[:, t])[..., None] * state
        state = state + key[:, t, :, :, None] * value[:, t, :, None]
        whole = np.repeat(state, H // G, axis=1)
        outputs.append(np.einsum("bhk,bhkv->bhv", query[:, t], whole))
    return np.stack(outputs, axis=1), state


def delta_arrays():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(B, T, H, K)), rng.normal(size=(B, T, G, K))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value, rate = rng.normal(size=(B, T, G, V)), rng.uniform(size=(B, T, G, 1))
    decay = -0.3 * rng.exponential(size=(B, T, G, 1))
    return [x.astype("float32") for x in (query, key, value, rate, decay)]


def delta_definition(query, key, value, rate, decay=0.0):
    """The same of the gated delta rule."""
    decay = np.broadcast_to(decay, rate.shape)
    state, outputs = np.zeros((B, G, K, V)), []
    for t in range(T):
        k, beta = key[:, t].astype("float64"), rate[:, t][..., None]
        erased = state - beta * np.einsum("bgk,bgl,bglv->bgkv", k, k, state)
        state = np.exp(decay[:, t])[..., None] * erased
        state = state + beta * k[..., None] * value[:, t, :, None]
        whole = np.repeat(state, H // G, axis=1)
        outputs.append(np.einsum("bhk,bhkv->bhv", query[:, t], whole))
    return np.stack(outputs, axis=1), state


def check(run, given, definition):
    """Whole chunks and pieces, output and state, are those of the definition."""
    expected, last = definition(*given)
    for chunk in (8, T):
        output, state = run(*map(keras.ops.convert_to_tensor, given), chunk=chunk)
        np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(numpy(state), last, rtol=1e-4, atol=2e-5)
    state, outputs = None, []
    for cut in (slice(0, 10), slice(10, 11), slice(11, T)):
        cuts = [keras.ops.convert_to_tensor(x[:, cut]) for x in given]
        output, state = run(*cuts, state=state, chunk=8)
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
    check(delta.run, delta_arrays()[: 4 + decays], delta_definition)


def test_a_key_that_is_written_again_and_again_has_its_last_value():
    _, key, value, rate, _ = delta_arrays()
    key[:] = key[:, :1]
    given = key.repeat(H // G, axis=2), key, value, np.ones_like(rate)
    output, _ = delta.run(*map(keras.ops.convert_to_tensor, given))
    np.testing.assert_allclose(numpy(output), value.repeat(H // G, axis=2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("features", [None, 1, K, "delta"])
def test_gradients_do_not_depend_on_chunks(features):
    run, given = recurrence.run, arrays(None if features == "delta" else features)
    if features == "delta":
        run, given = delta.run, delta_arrays()

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
