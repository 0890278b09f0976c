"""`DistributedDataParallel` on PyTorch: training in two processes as in one."""

import subprocess
import sys

import numpy as np

SCRIPT = """
import os, sys
import keras, numpy as np, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.distribution.models import decoder, texts

rank, count, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
if count > 1:
    store = f"file://{output}.init"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
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
if rank == 0:
    np.savez(output, np.array(losses), *model.get_weights())
"""


def losses_and_weights(count, output):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(count), str(output)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    with np.load(f"{output}.npz") as found:
        return [found[name] for name in found.files]


def test_training_is_that_of_one_process(tmp_path):
    alone = losses_and_weights(1, tmp_path / "alone")
    together = losses_and_weights(2, tmp_path / "together")
    assert alone[0][-1] < 0.9 * alone[0][0]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
