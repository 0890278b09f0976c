"""A row of beam search that is done keeps its result, whatever its spare beams meet later."""

import keras
import numpy as np

from keras_attention import generation

ops = keras.ops
STOP = np.array([[-20.0, -20.0, 10.0]], "float32")
GO_ON = np.array([[3.0, 0.0, -9.0]], "float32")


def step(tokens, cache):
    """Row 0 stops at once, and its logits are NaN from then on; row 1 goes on."""
    of_first = ops.arange(ops.shape(tokens)[0]) < ops.shape(tokens)[0] // 2
    logits = ops.where(of_first[:, None], STOP, GO_ON)
    broken = ops.logical_and(of_first, cache[:, 0] >= 1)
    return ops.where(broken[:, None], float("nan"), logits), cache + 1


def test_nan_in_spare_beams_of_a_row_that_is_done():
    found = generation.beam_search(
        step, [0, 0], np.zeros((2, 1), "int32"), num_beams=2, max_tokens=4, stop_tokens=(2,)
    )
    tokens, scores = map(ops.convert_to_numpy, (found.tokens, found.scores))
    np.testing.assert_array_equal(tokens[:, 0], [[2, 0, 0, 0], [0, 0, 0, 0]])
    assert np.isfinite(scores).all()
