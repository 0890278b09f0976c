"""Peak memory of additive scores: `python -m benchmarks.additive_memory`.

Our `kernels.additive` against the same equation written down, `Σ_u v_u tanh(q_tu + k_su)` over an
array (B, T, S, H, U), forward and in a training step (scores, and the gradients of all three
arguments), on the backend that KERAS_BACKEND names. Each figure is from a separate process: what
its largest resident set grew by after imports and a small warm-up. It is shown beside what the
array of all hidden units alone would take. Seconds are those of one run after the first, as a
rough guide.
"""

import keras
import numpy as np

from benchmarks import runner
from benchmarks.attention.backends import BACKEND, compiled
from benchmarks.attention.cases import Case
from benchmarks.attention.contestants import NoWeights
from keras_attention.backend import backend
from keras_attention.kernels import additive

ops = keras.ops

CASES = [
    {"B": 4, "T": 512, "S": 512, "H": 1, "U": 256},
    {"B": 1, "T": 2048, "S": 2048, "H": 1, "U": 128},
    {"B": 32, "T": 80, "S": 80, "H": 1, "U": 128},
]
SMALL = [{"B": 1, "T": 256, "S": 320, "H": 1, "U": 64}]
MODES = {"tensorflow": ("graph", "jit_compile"), "jax": ("jit",), "torch": ("eager",)}


def written_down(query, key, v):
    """The equation, with the array that the kernel avoids."""
    hidden = ops.tanh(ops.expand_dims(query, 2) + ops.expand_dims(key, 1))
    return ops.transpose(ops.sum(hidden * v, axis=-1), (0, 3, 1, 2))


def inputs(case):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[case[axis] for axis in axes]) for axes in ("BTHU", "BSHU", "HU")]
    return [ops.convert_to_tensor(array.astype("float32")) for array in arrays]


def measure(ours, case, train, mode):
    """One figure, in this process."""
    function = additive.additive if ours else written_down

    def gradients(*arrays):
        scores, pull = backend.vjp(function, arrays)
        return pull(ops.ones_like(scores))

    def run(case):
        layer = NoWeights(gradients if train else function)
        how = Case(1, case["T"], 1, 1, training=False, xla=mode == "jit_compile")
        step = compiled(layer.function, layer, inputs(case), how)
        step()
        return step

    small = {**case, "B": 1, "T": 8, "S": 8}
    grown, step = runner.growth(lambda: run(small), lambda: run(case))
    (taken,) = runner.milliseconds(step, 1)
    return {"megabytes": round(grown, 1), "seconds": round(taken / 1000, 3)}


def rows(options):
    for case in SMALL if options.small else CASES:
        hidden = 4 * case["B"] * case["T"] * case["S"] * case["H"] * case["U"]
        for mode in MODES[BACKEND]:
            for train in (False, True):
                found = {
                    name: runner.in_a_process("additive_memory", "measure", ours, case, train, mode)
                    for name, ours in (("ours", True), ("written_down", False))
                }
                yield {
                    "backend": BACKEND,
                    **case,
                    "mode": mode,
                    "step": "training" if train else "forward",
                    "hidden_units_megabytes": round(hidden / 2**20, 1),
                    **found,
                }


def main():
    options = runner.parsed(runner.parser(__doc__))

    def text(row):
        sizes = " ".join(f"{axis}{row[axis]}" for axis in "BTSHU")
        ours, plain = row["ours"], row["written_down"]
        return (
            f"{BACKEND} {row['mode']:11} {row['step']:8} {sizes}: "
            f"ours {ours['megabytes']:8.1f} MB {ours['seconds']:7.3f} s, "
            f"written down {plain['megabytes']:8.1f} MB {plain['seconds']:7.3f} s"
        )

    # Each backend has a separate run, and all of them one file.
    identity = ("backend", *CASES[0], "mode", "step")
    runner.report(rows(options), options, text, identity=identity, dtype="float32")


if __name__ == "__main__":
    main()
