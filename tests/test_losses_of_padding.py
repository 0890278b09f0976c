"""The loss where logits of tokens that are not real are NaN or infinite: as if they were 0."""

import keras
import numpy as np
import pytest

from keras_attention import masks
from keras_attention.losses import SmoothedCrossentropy
from tests.gradients import gradients

LOGITS = np.random.default_rng(0).normal(size=(2, 4, 5)).astype("float32")
TARGETS = np.array([[1, 2, 3, 0], [2, 1, 0, 0]])
REAL = TARGETS != 0


def ignored(logits):
    return SmoothedCrossentropy(0.1, ignore_class=0)(TARGETS, logits)


def masked(logits):
    mask = keras.ops.convert_to_tensor(REAL)
    return SmoothedCrossentropy(0.1, ignore_class=None)(TARGETS, masks.carry(logits + 0, mask))


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("loss", [ignored, masked])
def test_logits_of_padding_reach_neither_loss_nor_gradient(loss, garbage):
    dirty = np.where(REAL[..., None], LOGITS, np.float32(garbage))
    assert float(loss(keras.ops.convert_to_tensor(dirty))) == float(
        loss(keras.ops.convert_to_tensor(LOGITS))
    )
    found, expected = gradients(loss, [dirty])[0], gradients(loss, [LOGITS])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found[~REAL] == 0).all()
    assert (found[REAL] != 0).all()


def test_a_real_token_with_nan_still_shows():
    dirty = LOGITS.copy()
    dirty[0, 0, 0] = np.nan
    assert np.isnan(float(ignored(keras.ops.convert_to_tensor(dirty))))
    assert np.isnan(gradients(ignored, [dirty])[0][0, 0]).all()
