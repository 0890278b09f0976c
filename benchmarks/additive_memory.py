"""Peak memory of additive scores: `python -m benchmarks.additive_memory`.

Our `kernels.additive` against the same equation written down, `Σ_u v_u tanh(q_tu + k_su)` over an
array (B, T, S, H, U), forward and in a training step (scores, and the gradients of all three
arguments), on the backend that KERAS_BACKEND names. Each figure is from a separate process: what
its largest resident set grew by after imports and a small warm-up. It is shown beside what the
array of all hidden units alone would take. Seconds are those of one run after the first, as a
rough guide.
"""

import argparse
import json
import os
import pathlib
import platform
import time

from benchmarks.processes import answer, peak_bytes

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

RESULTS = pathlib.Path(__file__).parent / "results" / "additive_memory.json"

CASES = [
    {"B": 4, "T": 512, "S": 512, "H": 1, "U": 256},
    {"B": 1, "T": 2048, "S": 2048, "H": 1, "U": 128},
    {"B": 32, "T": 80, "S": 80, "H": 1, "U": 128},
]
SMALL = [{"B": 1, "T": 256, "S": 320, "H": 1, "U": 64}]
MODES = {"tensorflow": ("graph", "jit_compile"), "jax": ("jit",), "torch": ("eager",)}


def written_down(query, key, v):
    """The equation, with the array that the kernel avoids."""
    from keras import ops

    hidden = ops.tanh(ops.expand_dims(query, 2) + ops.expand_dims(key, 1))
    return ops.transpose(ops.sum(hidden * v, axis=-1), (0, 3, 1, 2))


def compiled(function, train, mode):
    """`function` of tensors as the mode runs it; with its gradients if it trains."""
    if mode in ("graph", "jit_compile"):
        import tensorflow as tf

        def step(*arrays):
            if not train:
                return function(*arrays)
            with tf.GradientTape() as tape:
                tape.watch(arrays)
                scores = function(*arrays)
            return tape.gradient(scores, arrays)

        return tf.function(step, jit_compile=mode == "jit_compile")
    if mode == "jit":
        import jax

        def total(*arrays):
            return function(*arrays).sum()

        step = jax.jit(jax.grad(total, argnums=(0, 1, 2)) if train else function)
        return lambda *arrays: jax.block_until_ready(step(*arrays))

    import torch

    def step(*arrays):
        if not train:
            with torch.no_grad():
                return function(*arrays)
        leaves = [array.detach().requires_grad_(True) for array in arrays]
        return torch.autograd.grad(function(*leaves).sum(), leaves)

    return step


def inputs(case):
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = ("BTHU", "BSHU", "HU")
    return [
        keras.ops.convert_to_tensor(
            rng.normal(size=[case[axis] for axis in axes]).astype("float32")
        )
        for axes in shapes
    ]


def measure(ours, case, train, mode):
    """One figure, in this process."""
    import keras

    from keras_attention.kernels import additive

    run = compiled(additive.additive if ours else written_down, train, mode)
    run(*inputs({**case, "B": 1, "T": 8, "S": 8}))
    arrays = inputs(case)
    before = peak_bytes()
    run(*arrays)
    grown = peak_bytes() - before
    start = time.perf_counter()
    run(*arrays)
    return {
        "megabytes": round(grown / 2**20, 1),
        "seconds": round(time.perf_counter() - start, 3),
        "keras": keras.__version__,
    }


def in_a_process(*arguments):
    """`measure` in a separate process."""
    return json.loads(answer("benchmarks.additive_memory", "--measure", json.dumps(arguments)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="one small case, to see that it runs")
    parser.add_argument("--output", type=pathlib.Path, help=f"a JSON file, such as {RESULTS.name}")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*json.loads(arguments.measure))))
        return

    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    rows = []
    for case in SMALL if arguments.small else CASES:
        hidden = 4 * case["B"] * case["T"] * case["S"] * case["H"] * case["U"]
        for mode in MODES[backend]:
            for train in (False, True):
                found = {
                    name: in_a_process(ours, case, train, mode)
                    for name, ours in (("ours", True), ("written_down", False))
                }
                version = {figures.pop("keras") for figures in found.values()}
                row = {
                    **case,
                    "mode": mode,
                    "step": "training" if train else "forward",
                    "hidden_units_megabytes": round(hidden / 2**20, 1),
                    **found,
                }
                rows.append(row)
                ours, plain = found["ours"], found["written_down"]
                print(
                    f"{backend} {mode:11} {row['step']:8} "
                    + " ".join(f"{axis}{size}" for axis, size in case.items())
                    + f": ours {ours['megabytes']:8.1f} MB {ours['seconds']:7.3f} s, written down "
                    f"{plain['megabytes']:8.1f} MB {plain['seconds']:7.3f} s",
                    flush=True,
                )
    if arguments.output:
        # Each backend has a separate run; the file keeps what the others wrote.
        kept = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        kept[backend] = {
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "keras": min(version),
            "dtype": "float32",
            "figures": rows,
        }
        arguments.output.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
