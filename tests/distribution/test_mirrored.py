"""`tf.distribute` on TensorFlow: training as on one device."""

import numpy as np
import pytest
import tensorflow as tf

from tests.distribution.models import assert_trained_alike, decoder, trained


def mirrored(devices):
    """A strategy of so many virtual devices."""
    names = [device.name for device in tf.config.list_logical_devices("CPU")[:devices]]
    # TensorFlow's default cannot be used twice in a process with other numbers of devices.
    return tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())


@pytest.mark.parametrize("devices", [2, 4])
def test_training_is_that_of_one_device(devices):
    alone = decoder(dropout=0.0)
    start = alone.get_weights()
    # Without XLA, which reads no variable of another device than the first.
    expected = trained(alone, jit_compile=False)
    with mirrored(devices).scope():
        together = decoder(dropout=0.0)
        together.set_weights(start)
        assert_trained_alike(trained(together, jit_compile=False), expected)


def test_replicas_draw_dropout():
    model = decoder(dropout=0.0)
    start = model.get_weights()
    without = trained(model, steps=1)
    with mirrored(2).scope():
        model = decoder(dropout=0.5)
        model.set_weights(start)
        found = trained(model, steps=1)
    assert np.isfinite(found[0]).all()
    assert abs(found[0][0] - without[0][0]) > 1e-3
