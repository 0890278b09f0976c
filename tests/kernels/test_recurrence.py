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
        state = np.exp(decay[:, t])[..., None] * state
        if rate is not None:
            state = state - beta * np.einsum("bgk,bgl,bglv->bgkv", k, k, state)
        state = state + beta * k[..., None] * value[:, t, :, None]
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


@pytest.mark.parametrize("features, strength", [(None, 0), (1, 0.3), (K, 0.3), (K, 15.0)])
def test_chunks_are_the_delta_rule(features, strength):
    given = arrays(features, strength, delta=True)
    if features == K:
        given[4] = np.maximum(given[4], delta.SMALLEST)
    check(delta.run, given, delta_definition)


@pytest.mark.parametrize("rule", [recurrence, delta])
@pytest.mark.parametrize("features", [None, 1, K])
def test_gradients_do_not_depend_on_chunks(features, rule):
    run, given = rule.run, arrays(features, 0.3, delta=rule is delta)

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


@pytest.mark.parametrize("groups", [1, 2])
def test_mamba_2_is_a_decay_of_each_head(groups):
    """Dao & Gu 2024: C, B, x are queries, keys, values, and steps multiply keys and decays."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    sizes = (B, T, H, V), (B, T, H), (H,), (B, T, groups, K), (B, T, groups, K), (H,)
    rng = np.random.default_rng(0)
    value, step, rates, key, query, kept = (rng.normal(size=x).astype("float32") for x in sizes)
    rates, steps = -np.exp(rates), np.log1p(np.exp(step + 0.5))[..., None]
    given = [torch.tensor(x) for x in (value, step, rates, key, query)]
    options = {"dt_bias": torch.full((H,), 0.5), "dt_softplus": True, "D": torch.tensor(kept)}
    expected, last = theirs.mamba2_chunk_scan(*given, 8, return_final_states=True, **options)
    query, key = (np.repeat(x, H // groups, axis=2) for x in (query, key))
    decay = rates[:, None] * steps
    output, state = compiled(recurrence.run, query, steps * key, value, decay.astype("float32"))
    close = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(numpy(output) + kept[:, None] * value, expected.numpy(), **close)
    np.testing.assert_allclose(numpy(state).swapaxes(-1, -2), last.numpy(), **close)
