"""Calls of few scores outside of programs: that `blockwise` leaves them to `reference`, alike."""

import keras
import numpy as np
import pytest

from keras_attention.kernels import reference, strategies
from keras_attention.patterns import Causal
from tests.arrays import numpy
from tests.problems import attend

BACKEND = keras.config.backend()


@pytest.fixture
def runs(monkeypatch):
    """Whether a function has few scores, and `reference` computes them."""
    found, run = [], reference.run
    monkeypatch.setattr(reference, "run", lambda *x: found.append(x) or run(*x))

    def few(function, *arrays):
        found.clear()
        with strategies.using(few=2**16):
            function(*arrays)
        return bool(found)

    return few


def test_few_scores_are_the_reference_outside_of_programs(runs):
    def call(x, **given):
        return attend(x, x, x, kernel="blockwise", **given).output

    x = keras.random.normal((2, 16, 4, 8), seed=0)
    assert runs(call, x) and runs(lambda x: call(x, pattern=Causal(), return_lse=True), x)
    assert runs(lambda x: attend(x[:, :1], x, x, kernel="single_query"), x)
    assert not runs(lambda x: call(x, dropout=0.5, seed=keras.random.SeedGenerator(0)), x)
    assert not runs(call, keras.ops.repeat(x, 16, axis=1))
    if BACKEND == "jax":
        import jax

        assert not runs(jax.jit(call), x)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        assert not runs(tf.function(call), x)


def with_few_and_in_tiles(answers):
    """What a function returns where few scores are computed at once, and where they have tiles."""
    with strategies.using(few=2**16):
        found = answers()
    return found, answers()


@pytest.mark.parametrize(
    "dtype, error", [("float32", 1e-5), ("bfloat16", 2**-7), ("float16", 2**-10)]
)
def test_lse_and_half_precision_are_those_of_tiles(dtype, error):
    x = keras.ops.cast(keras.random.normal((2, 9, 4, 8), seed=0), dtype)

    def answers():
        result = attend(x, x, x, kernel="blockwise", pattern=Causal(), return_lse=True)
        assert keras.backend.standardize_dtype(result.output.dtype) == dtype
        assert keras.backend.standardize_dtype(result.lse.dtype) == "float32"
        return [numpy(keras.ops.cast(y, "float32")) for y in (result.output, result.lse)]

    for found, expected in zip(*with_few_and_in_tiles(answers), strict=True):
        np.testing.assert_allclose(found, expected, rtol=error, atol=error)
