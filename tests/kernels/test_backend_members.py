"""Members of the backends that have code of their own there, against NumPy."""

import pathlib
import sys

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.backend import backend, interface
from tests.arrays import close, numpy, random
from tests.gradients import gradients
from tests.problems import on_tensorflow

ops = keras.ops
BACKEND = keras.backend.backend()


def of(array, dtype="float32"):
    return ops.cast(ops.convert_to_tensor(array), dtype)


@pytest.mark.skipif(BACKEND != "jax", reason="derivatives forward, and maps, are JAX's")
def test_written_rows_and_products_have_tangents():
    import jax

    array, rows, at = of(random(6, 4), "bfloat16"), of(random(2, 4), "bfloat16"), np.array([4, 1])
    tangents = ops.ones_like(array), 2 * ops.ones_like(rows)
    _, found = jax.jvp(lambda *x: backend.write_rows(x[0], at, x[1]), (array, rows), tangents)
    np.testing.assert_array_equal(numpy(found)[:, 0], [1, 2, 1, 1, 2, 1])
    x, kernel = of(random(2, 5, 8), "bfloat16"), of(random(8, 3), "bfloat16")

    def product(x):
        return backend.affine(x, 8, kernel, None, (5, 3))

    mapped = jax.vmap(product)(x)
    np.testing.assert_array_equal(numpy(mapped[1]), numpy(product(x[1])))
    _, tangent = jax.jvp(product, (x[0],), (x[1],))
    np.testing.assert_allclose(numpy(tangent), numpy(product(x[1])), rtol=2**-7, atol=2**-7)


def test_padding_that_is_clear_stays_and_other_padding_is_cleared():
    x, mask = random(2, 300, 128), np.arange(300) < np.array([[300], [200]])
    zeros = x * mask[..., None]
    for given in (zeros, x, np.where(mask[..., None], x, np.nan)):
        found = backend.clear(of(given), ops.convert_to_tensor(mask))
        np.testing.assert_array_equal(numpy(found), zeros)
    (gradient,) = gradients(
        lambda x: ops.sum(backend.clear(x, ops.convert_to_tensor(mask))), [zeros]
    )
    np.testing.assert_array_equal(gradient[..., 0], mask)


@pytest.mark.parametrize("activation", ["silu", "linear"])
def test_a_gate_leaves_its_input_as_it_is(activation):
    layer = ka.FeedForward(8, activation, gated=True, use_bias=False)
    x = of(random(2, 3, 8))
    first, second = layer(x), layer(x)
    np.testing.assert_array_equal(numpy(x), random(2, 3, 8))
    np.testing.assert_array_equal(numpy(first), numpy(second))


def by_definition(array, rows):
    columns = array.shape[1] - rows + 1
    starts = range(rows - 1, -1, -1)
    return np.stack([array[:, start : start + columns] for start in starts], axis=1)


SIZES = [(1, 1), (1, 5), (5, 1), (7, 3), (6, 4), (4, 6), (12, 12), (16, 33)]


@pytest.mark.parametrize("rows, columns", SIZES)
def test_windows_and_their_gradient(rows, columns):
    array, weights = random(3, rows + columns - 1), random(3, rows, columns)

    def windows(array):
        return backend.windows(array, rows, columns)

    np.testing.assert_array_equal(numpy(windows(of(array))), by_definition(array, rows))
    (gradient,) = gradients(lambda array: windows(array) * of(weights), [array])
    expected = np.zeros_like(array)
    for row in range(rows):
        expected[:, rows - 1 - row : rows - 1 - row + columns] += weights[:, row]
    close(gradient, expected)


@on_tensorflow
def test_windows_of_unknown_sizes():
    import tensorflow as tf

    @tf.function(autograph=False)
    def windows(array, rows):
        return backend.windows(array, rows, tf.shape(array)[1] - rows + 1)

    array = np.arange(22.0, dtype="float32").reshape(2, 11)
    for rows in (1, 4, 11):
        found = windows(tf.constant(array), tf.constant(rows))
        np.testing.assert_array_equal(found, by_definition(array, rows))


@pytest.mark.any_backend
def test_products_in_bfloat16_are_for_processors_that_have_them(monkeypatch):
    for flags, fast in (
        ("flags : fma avx512_bf16 avx512_vnni", True),
        ("flags : amx_bf16", True),
        ("flags : avx512_vnni", False),
        (None, False),
    ):

        def read_text(path, encoding, flags=flags):
            if flags is None:
                raise OSError("no such file")
            return flags

        monkeypatch.setattr(pathlib.Path, "read_text", read_text)
        assert interface.multiplies_bfloat16.__wrapped__() is fast


@on_tensorflow
def test_tensorflow_still_says_what_runs(monkeypatch):
    """Where a version moves these, the fast paths are lost without an error."""
    tf = pytest.importorskip("tensorflow")
    module = sys.modules[type(backend).__module__]
    xla, onednn = module._uses_xla, module._uses_onednn
    for function in (xla, onednn):
        assert function.__module__.startswith("tensorflow."), (
            f"TensorFlow {tf.__version__} has moved {function.__name__}, by which "
            "backend/tensorflow.py chooses what is fastest"
        )
    found = []

    def record(x):
        found.append(bool(xla(tf.compat.v1.get_default_graph())))
        return x

    for jit_compile in (True, False):
        tf.function(record, autograph=False, jit_compile=jit_compile)(1.0)
    assert found == [True, False]
    # A graph without XLA multiplies whole rows of scores where oneDNN is on, and one with it none.
    chosen = {}
    for on in (True, False):
        monkeypatch.setattr(module, "_uses_onednn", lambda on=on: on)
        with tf.Graph().as_default():
            chosen[on] = backend.prefers_whole_rows(2**20)
    assert chosen == {True: not backend.on_accelerator(None), False: False}
