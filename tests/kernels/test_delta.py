"""The gated delta rule in chunks, against the recurrence in float64."""

import keras
import numpy as np
import pytest

from keras_attention.kernels import delta
from tests.arrays import numpy
from tests.gradients import gradients

B, T, H, G, K, V = 2, 21, 4, 2, 5, 3


def arrays():
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(B, T, H, K)), rng.normal(size=(B, T, G, K))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    value, rate = rng.normal(size=(B, T, G, V)), rng.uniform(size=(B, T, G, 1))
    decay = -0.3 * rng.exponential(size=(B, T, G, 1))
    return [x.astype("float32") for x in (query, key, value, rate, decay)]


def definition(query, key, value, rate, decay):
    """Output and last state, by the recurrence."""
    state, outputs = np.zeros((B, G, K, V)), []
    for t in range(T):
        k, beta = key[:, t].astype("float64"), rate[:, t][..., None]
        erased = state - beta * np.einsum("bgk,bgl,bglv->bgkv", k, k, state)
        state = np.exp(decay[:, t])[..., None] * erased
        state = state + beta * k[..., None] * value[:, t, :, None]
        whole = np.repeat(state, H // G, axis=1)
        outputs.append(np.einsum("bhk,bhkv->bhv", query[:, t], whole))
    return np.stack(outputs, axis=1), state


@pytest.mark.parametrize("decays", [True, False])
def test_chunks_are_the_recurrence(decays):
    *given, decay = arrays()
    given = [*given, decay] if decays else given
    expected, last = definition(*given, *([] if decays else [np.zeros_like(decay)]))
    for chunk in (8, T):
        output, state = delta.run(*map(keras.ops.convert_to_tensor, given), chunk=chunk)
        np.testing.assert_allclose(numpy(output), expected, rtol=1e-4, atol=2e-5)
        np.testing.assert_allclose(numpy(state), last, rtol=1e-4, atol=2e-5)
    state, outputs = None, []
    for cut in (slice(0, 10), slice(10, 11), slice(11, T)):
        cuts = [keras.ops.convert_to_tensor(x[:, cut]) for x in given]
        output, state = delta.run(*cuts, state=state, chunk=8)
        outputs.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, rtol=1e-4, atol=2e-5)


def test_a_key_that_is_written_again_and_again_has_its_last_value():
    _, key, value, rate, _ = arrays()
    key[:] = key[:, :1]
    given = key.repeat(H // G, axis=2), key, value, np.ones_like(rate)
    output, _ = delta.run(*map(keras.ops.convert_to_tensor, given))
    np.testing.assert_allclose(numpy(output), value.repeat(H // G, axis=2), rtol=1e-4, atol=1e-5)


def test_gradients_do_not_depend_on_chunks():
    given = arrays()

    def total(chunk):
        return gradients(lambda *x: keras.ops.square(delta.run(*x, chunk=chunk)[0]), given)

    for one, other in zip(total(4), total(T), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(other).max())
