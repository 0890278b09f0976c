"""Few scores outside of programs: when they are chosen, and that tiles give the same."""

import keras
import numpy as np
import pytest

from keras_attention.kernels.tiles import strategies
from keras_attention.patterns import Causal, SlidingWindow
from tests.arrays import numpy
from tests.problems import attend, explain

BACKEND = keras.config.backend()


def test_few_scores_are_chosen_outside_of_programs():
    def chosen(x, queries=None, **given):
        with strategies.using(few=2**16):
            # With a soft cap, which fused kernels do not have.
            return explain(x[:, :queries], x, x, logit_soft_cap=9.0, **given)[0]

    x = keras.random.normal((2, 16, 4, 8), seed=0)
    assert chosen(x) == chosen(x, 1) == chosen(x, pattern=Causal(), return_lse=True) == "few_scores"
    assert chosen(x, pattern=SlidingWindow(1, 1)) == "few_scores"
    assert chosen(x, dropout=0.5, seed=keras.random.SeedGenerator(0)) != "few_scores"
    assert chosen(keras.ops.repeat(x, 16, axis=1)) != "few_scores"
    found = []
    if BACKEND == "jax":
        import jax

        jax.jit(lambda x: found.append(chosen(x)))(x)
        assert found == ["blockwise"]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.function(lambda x: found.append(chosen(x)), autograph=False)(x)
        assert found == ["blockwise"]


@pytest.mark.skipif(BACKEND != "torch", reason="it has a fused kernel")
def test_a_fused_kernel_goes_before():
    x = keras.random.normal((2, 16, 4, 8), seed=0)
    with strategies.using(few=2**16):
        assert explain(x, x, x)[0] == "fused"
        assert explain(x, x, x, kernel="few_scores", logit_soft_cap=2.0)[0] == "few_scores"
        with pytest.raises(ValueError, match="the backend's fused kernel is one operation"):
            explain(x, x, x, kernel="few_scores")


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
        result = attend(x, x, x, pattern=Causal(), return_lse=True)
        assert keras.backend.standardize_dtype(result.output.dtype) == dtype
        assert keras.backend.standardize_dtype(result.lse.dtype) == "float32"
        return [numpy(keras.ops.cast(y, "float32")) for y in (result.output, result.lse)]

    for found, expected in zip(*with_few_and_in_tiles(answers), strict=True):
        np.testing.assert_allclose(found, expected, rtol=error, atol=error)
