"""Training in two processes is that in one: `DistributedDataParallel`, multi-worker strategies."""

import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np
import pytest

OF_TORCH = """
import os, sys
import keras, numpy as np, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.distribution.models import decoder, texts

rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
if count > 1:
    dist.init_process_group("gloo")
keras.utils.set_random_seed(0)
model = decoder(dropout=0.0, num_key_value_heads=2)
model.train()
module = DistributedDataParallel(model) if count > 1 else model
optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
x, y = texts()
x, y = (torch.as_tensor(a[rank::count].copy()) for a in (x, y))
losses = []
for _ in range(10):
    logits = module(x, training=True)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten().long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if count > 1:
        loss = loss.detach()
        dist.all_reduce(loss)
        loss = loss / count
    losses.append(float(loss))
np.savez(sys.argv[1], np.array(losses), *model.get_weights())
"""

# TensorFlow's own loop: `fit` of Keras 3.15 raises an error, of any model.
OF_TENSORFLOW = """
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
SCRIPTS = {"torch": OF_TORCH, "tensorflow": OF_TENSORFLOW}


def ports(count):
    """Ports that are free."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def trained(folder, count):
    """The losses and the weights of each process."""
    free, processes = ports(count), {}
    for rank in range(count):
        workers = [f"localhost:{port}" for port in free]
        task = {"type": "worker", "index": rank}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
            "TF_NUM_INTRAOP_THREADS": "1",
            # What `torchrun` sets.
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free[0]),
        }
        output = folder / f"{rank} of {count}.npz"
        command = [sys.executable, "-c", SCRIPTS[keras.config.backend()], output]
        processes[output] = subprocess.Popen(command, env=environment)
    try:
        assert all(process.wait(timeout=300) == 0 for process in processes.values())
    finally:
        for process in processes.values():
            process.kill()
    return [list(np.load(output).values()) for output in processes]


@pytest.mark.skipif(keras.config.backend() == "jax", reason="One process has all devices on JAX")
def test_training_is_that_of_one_process(tmp_path):
    (alone,) = trained(tmp_path, 1)
    assert alone[0][-1] < 0.9 * alone[0][0]
    for found in trained(tmp_path, 2):
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
