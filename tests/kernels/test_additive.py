"""Additive scores against their equation, however many units are held at once."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, scores
from keras_attention.kernels import additive as kernel
from keras_attention.kernels.tiles import strategies
from tests import definition
from tests.arrays import numpy, random
from tests.gradients import gradients

B, T, S, H, U = 2, 4, 5, 3, 7
# Limits that make one chunk, three of 3, 3 and 1 units, and one for each unit.
LIMITS = {"whole": 2**20, "chunks": 3 * T * S, "units": 1}


QUERY, KEY, V = random(B, T, H, U, seed=1), random(B, S, H, U, seed=2), random(H, U, seed=3)
UPSTREAM = random(B, H, T, S, seed=4)


def by_definition(query, key, v):
    table = np.zeros((len(query), query.shape[2], query.shape[1], key.shape[1]))
    for b, h, t, s in np.ndindex(table.shape):
        table[b, h, t, s] = definition.perceptron(query[b, t, h] + key[b, s, h], v[h])
    return table


def tensors(*arrays):
    return [keras.ops.convert_to_tensor(array) for array in arrays]


def weighted(*arrays):
    return keras.ops.multiply(kernel.additive(*arrays), UPSTREAM)


@pytest.fixture(params=LIMITS)
def limit(request):
    with strategies.using(hidden=LIMITS[request.param]):
        yield request.param


def test_scores_are_those_of_the_definition(limit):
    found = kernel.additive(*tensors(QUERY, KEY, V))
    np.testing.assert_allclose(numpy(found), by_definition(QUERY, KEY, V), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_finite_differences(limit):
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")
    arrays = [array.astype("float64") for array in (QUERY[:1, :2], KEY[:1], V)]
    upstream = UPSTREAM[:1, :, :2].astype("float64")
    found = gradients(lambda *a: keras.ops.multiply(kernel.additive(*a), upstream), arrays)
    expected = definition.gradients(lambda *a: (by_definition(*a) * upstream).sum(), arrays)
    for gradient, reference in zip(found, expected, strict=True):
        assert gradient.dtype == np.float64
        np.testing.assert_allclose(gradient, reference, rtol=1e-7, atol=1e-8)


def test_huge_arguments_give_numbers(limit):
    query, key = 1e17 * QUERY, 1e17 * KEY
    found = numpy(kernel.additive(*tensors(query, key, V)))
    expected = np.einsum("btshu,hu->bhts", np.sign(query[:, :, None] + key[:, None]), V)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for gradient in gradients(weighted, [query, key, V])[:2]:
        np.testing.assert_array_equal(gradient, 0)


def test_chunks_are_as_large_as_the_limit_allows():
    assert kernel.chunk(80, 80, 128) == 128
    assert kernel.chunk(512, 512, 256) == 4
    assert kernel.chunk(2048, 2048, 128) == 1
    assert kernel.chunk(10**5, 10**5, 3) == 1
    assert kernel.chunk(None, None, 5) == 1
    assert kernel.chunk(1, None, 512) == 512
    assert kernel.chunk(0, 5, 6) == 6
    # 7 units in chunks of at most 3 are 3 and 3 and 1, not padded beyond the last.
    assert kernel.chunk(2**9, 2**9, 7) == 4 and kernel.chunk(2**9, 2**9 + 100, 7) == 3
    for units in range(1, 40):
        for keys in (2**10, 3000, 2**14, 2**16):
            size = kernel.chunk(16, keys, units)
            assert size == 1 or size * 16 * keys <= 2**20
            assert units <= -(-units // size) * size < units + -(-units // size)


# Compiled

COMPILED = {"tensorflow": ("graph", "jit_compile"), "jax": ("jit",), "torch": ()}


def compiled(function, mode):
    """`function` of arrays, whose batch and lengths are not known where the mode knows none."""
    if mode == "jit":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    signature = [
        tf.TensorSpec((None, None, H, U)),
        tf.TensorSpec((None, None, H, U)),
        tf.TensorSpec((H, U)),
    ]
    return tf.function(function, signature, autograph=False, jit_compile=mode == "jit_compile")


@pytest.mark.parametrize("mode", COMPILED[keras.backend.backend()])
def test_compiled_it_is_the_same_where_lengths_are_not_known(mode, limit):
    """So are its gradients."""
    expected = [by_definition(QUERY, KEY, V), *gradients(weighted, [QUERY, KEY, V])]
    if mode == "jit":
        import jax

        def step(*arrays):
            slopes = jax.grad(lambda *a: weighted(*a).sum(), argnums=(0, 1, 2))
            return kernel.additive(*arrays), *slopes(*arrays)

    else:
        import tensorflow as tf

        def step(*arrays):
            with tf.GradientTape() as tape:
                tape.watch(arrays)
                scores = kernel.additive(*arrays)
            return scores, *tape.gradient(scores, arrays, tf.constant(UPSTREAM))

    for found, other in zip(compiled(step, mode)(QUERY, KEY, V), expected, strict=True):
        np.testing.assert_allclose(numpy(found), other, rtol=1e-4, atol=1e-5)


def test_a_model_is_exported_with_its_chunks(tmp_path):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras exports to a SavedModel from TensorFlow, without further packages.")
    import tensorflow as tf

    query, memory = keras.Input((None, 4)), keras.Input((None, 6))
    with strategies.using(hidden=1):
        model = keras.Model([query, memory], Attention(score=scores.Additive(5))(query, memory))
        model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    arrays = [random(2, T, 4), random(2, S, 6)]
    np.testing.assert_allclose(numpy(loaded.serve(arrays)), numpy(model(arrays)), rtol=1e-5)


def test_it_never_holds_all_units(monkeypatch):
    largest = []
    tanh = keras.ops.tanh

    def watching(array):
        largest.append(int(np.prod(array.shape)))
        return tanh(array)

    monkeypatch.setattr(kernel.ops, "tanh", watching)
    query, key, v = random(1, 600, 1, 8), random(1, 700, 1, 8), random(1, 8)
    gradients(kernel.additive, [query, key, v])
    # In both directions, two units at a time.
    assert len(largest) >= 2 and max(largest) == 2 * 600 * 700
