"""`MultiWorkerMirroredStrategy` on TensorFlow: training in two processes as in one."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import numpy as np

# TensorFlow's own loop: `fit` of Keras 3.15 raises an error, of any model.
SCRIPT = """
import sys
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
import keras, numpy as np
from tests.distribution.models import decoder, texts

keras.utils.set_random_seed(0)
x, y = texts()
with strategy.scope():
    model = decoder(dropout=0.0)
    optimizer = keras.optimizers.SGD(0.3, momentum=0.9)
    optimizer.build(model.trainable_variables)
tokens = int((y != 0).sum())
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(len(x)).repeat(10)


@tf.function
def step(batch):
    def one(x, y):
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x, training=True)) / tokens
        gradients = tape.gradient(loss, model.trainable_variables)
        # Summed over the processes.
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce("SUM", strategy.run(one, args=batch), axis=None)


losses = [float(step(batch)) for batch in strategy.experimental_distribute_dataset(data)]
np.savez(sys.argv[1], np.array(losses), *model.get_weights())
"""


def ports(count):
    """Ports that are free."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


def trained(tmp_path, count):
    workers = [f"localhost:{port}" for port in ports(count)]
    processes = []
    for rank in range(count):
        task = {"type": "worker", "index": rank}
        config = json.dumps({"cluster": {"worker": workers}, "task": task})
        environment = {**os.environ, "TF_CONFIG": config, "TF_NUM_INTRAOP_THREADS": "1"}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / f"{rank} of {count}.npz")]
        processes.append(subprocess.Popen(command, env=environment))
    try:
        assert all(process.wait(timeout=300) == 0 for process in processes)
    finally:
        for process in processes:
            process.kill()
    found = []
    for rank in range(count):
        with np.load(tmp_path / f"{rank} of {count}.npz") as arrays:
            found.append([arrays[f"arr_{n}"] for n in range(len(arrays))])
    return found


def test_training_is_that_of_one_process(tmp_path):
    (alone,) = trained(tmp_path, 1)
    for found in trained(tmp_path, 2):
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert alone[0][-1] < 0.9 * alone[0][0]
