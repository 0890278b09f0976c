"""Peak memory of additive scores: `python -m benchmarks.additive_memory`.

Our `kernels.additive` against the same equation written down, `Σ_u v_u tanh(q_tu + k_su)` over an
array (B, T, S, H, U), forward and in a training step (scores, and the gradients of all three
arguments), on the backend that KERAS_BACKEND names. Each figure is from a separate process: what
its largest resident set grew by after imports and a small warm-up. It is shown beside what the
array of all hidden units alone would take. Seconds are the median of a few runs after the first,
as a rough guide.
"""

import itertools

import keras
import numpy as np

from benchmarks import runner
from benchmarks.backends import BACKEND, compiled
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


def run(ours, case, train, mode):
    """A function that computes scores, or them and their gradients, once."""
    function = additive.additive if ours else written_down

    def gradients(*arrays):
        scores, pull = backend.vjp(function, arrays)
        return pull(ops.ones_like(scores))

    call = gradients if train else function
    return compiled(call, inputs(case), xla=mode == "jit_compile")


def figures(ours, case, *how):
    short = {**case, "B": 1, "T": 8, "S": 8}
    found = runner.growth("additive_memory", "run", [ours, short, *how], [ours, case, *how])
    return {"megabytes": round(found["MiB"], 1), "seconds": round(found["ms"] / 1000, 3)}


def rows(options):
    cases = SMALL if options.small else CASES
    for case, mode, train in itertools.product(cases, MODES[BACKEND], (False, True)):
        hidden = 4 * case["B"] * case["T"] * case["S"] * case["H"] * case["U"]
        yield {
            "backend": BACKEND,
            **case,
            "mode": mode,
            "step": "training" if train else "forward",
            "hidden_units_megabytes": round(hidden / 2**20, 1),
            "ours": figures(True, case, train, mode),
            "written_down": figures(False, case, train, mode),
        }


def main():
    options = runner.parsed(__doc__)
    # Each backend has a separate run, and all of them one file.
    identity = ("backend", *CASES[0], "mode", "step")
    runner.report(rows(options), options, identity=identity, dtype="float32")


if __name__ == "__main__":
    main()
