"""Members of the backends that have code of their own there, against NumPy in float64."""

import sys

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.backend import backend
from tests.arrays import numpy
from tests.gradients import gradients

ops = keras.ops
BACKEND = keras.backend.backend()


def numbers(*shape, seed=0, dtype="float32"):
    """Numbers that `dtype` has, in float32."""
    given = np.random.default_rng(seed).standard_normal(shape)
    return numpy(ops.cast(given, dtype)).astype("float64")


def of(array, dtype):
    return ops.cast(ops.convert_to_tensor(array.astype("float32")), dtype)


@pytest.mark.skipif(BACKEND != "jax", reason="derivatives forward, and maps, are JAX's")
def test_written_rows_and_products_have_tangents():
    import jax

    array, rows, at = of(numbers(6, 4), "bfloat16"), of(numbers(2, 4), "bfloat16"), np.array([4, 1])
    tangents = ops.ones_like(array), 2 * ops.ones_like(rows)
    _, found = jax.jvp(lambda *x: backend.write_rows(x[0], at, x[1]), (array, rows), tangents)
    np.testing.assert_array_equal(numpy(found)[:, 0], [1, 2, 1, 1, 2, 1])
    x, kernel = of(numbers(2, 5, 8), "bfloat16"), of(numbers(8, 3), "bfloat16")

    def product(x):
        return backend.affine(x, 8, kernel, None, (5, 3))

    mapped = jax.vmap(product)(x)
    np.testing.assert_array_equal(numpy(mapped[1]), numpy(product(x[1])))
    _, tangent = jax.jvp(product, (x[0],), (x[1],))
    np.testing.assert_allclose(numpy(tangent), numpy(product(x[1])), rtol=2**-7, atol=2**-7)


def test_padding_that_is_clear_stays_and_other_padding_is_cleared():
    x, mask = numbers(2, 300, 128), np.arange(300) < np.array([[300], [200]])
    zeros = x * mask[..., None]
    for given in (zeros, x, np.where(mask[..., None], x, np.nan)):
        found = backend.clear(of(given, "float32"), ops.convert_to_tensor(mask))
        np.testing.assert_array_equal(numpy(found), zeros.astype("float32"))
    (gradient,) = gradients(
        lambda x: ops.sum(backend.clear(x, ops.convert_to_tensor(mask))), [zeros.astype("float32")]
    )
    np.testing.assert_array_equal(gradient[..., 0], mask.astype("float32"))


@pytest.mark.parametrize("activation", ["silu", "linear"])
def test_a_gate_leaves_its_input_as_it_is(activation):
    layer = ka.FeedForward(8, activation, gated=True, use_bias=False)
    x = of(numbers(2, 3, 8), "float32")
    first, second = layer(x), layer(x)
    np.testing.assert_array_equal(numpy(x), numbers(2, 3, 8).astype("float32"))
    np.testing.assert_array_equal(numpy(first), numpy(second))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="what TensorFlow has no public names for")
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
