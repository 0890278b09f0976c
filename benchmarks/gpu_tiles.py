"""How many scores a tile of `blockwise` should have on a GPU: `python -m benchmarks.gpu_tiles`.

Training steps in bfloat16 of problems that no fused kernel takes, by the size of tiles.
"""

import argparse
import json
import pathlib

from benchmarks.attention.backends import BACKEND, compiled, gpu
from benchmarks.attention.cases import Case
from benchmarks.attention.contestants import NoWeights, ops
from benchmarks.attention.measuring import in_turns, summary
from benchmarks.attention.report import preamble, surroundings
from benchmarks.gpu import heads_of
from keras_attention import ops as ours
from keras_attention import patterns
from keras_attention.kernels import strategies

PROBLEMS = {
    "dropout": {"dropout": 0.1, "seed": 1},
    "ALiBi, causal": {"position": "alibi", "pattern": "causal"},
    "window of 128 on both sides": {"pattern": patterns.SlidingWindow(128, 128)},
}
LENGTHS = {2048: 8, 8192: 2}
SCORES = tuple(2**power for power in range(21, 28))


def step(case, scores, kernel, options):
    """A training step of the attention alone, or None where this kernel cannot."""

    def attend(heads):
        parts = (heads[n] for n in range(3))
        with strategies.using(scores=scores):
            return ours.attend(*parts, kernel=kernel, **options)

    layer = NoWeights(attend)
    inputs = [ops.convert_to_tensor(heads_of(case), dtype=case.dtype)]
    run = compiled(layer.function, layer, inputs, case)
    try:
        run()
    except ValueError as error:
        if "cannot do this" not in str(error):
            raise
        return None
    run()
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--scores", type=int, nargs="+", default=SCORES, help="of a tile")
    parser.add_argument("--seconds", type=float, default=1, help="for each problem and kernel")
    parser.add_argument("--repeats", type=int, default=21, help="bursts of each size")
    parser.add_argument("--output", type=pathlib.Path, help="a JSON file for the figures")
    options = parser.parse_args()
    if not (gpu() or options.small):
        parser.error(f"{BACKEND} sees no GPU; --small shows on a CPU that this program runs")
    report = {**surroundings(options), "rows": []}
    print(preamble(report), "\n")
    print(f"| ms by scores of a tile | {' | '.join(map(str, options.scores))} |")
    print("| --- |" + " --- |" * len(options.scores), flush=True)
    for length, batch in ({64: 2} if options.small else LENGTHS).items():
        case = Case(batch, length, 512, 8, dtype="bfloat16")
        for name, given in PROBLEMS.items():
            for kernel in ("blockwise", "banded"):
                runs = {n: step(case, n, kernel, given) for n in options.scores}
                runs = {n: run for n, run in runs.items() if run}
                if not runs:
                    continue
                found = in_turns(runs, options.repeats, options.seconds)
                times = {n: summary([wall for wall, _ in rows]) for n, rows in found.items()}
                row = {"problem": name, "length": length, "batch": batch, "kernel": kernel}
                report["rows"].append({**row, "times": times})
                cells = " | ".join(f"{times[n]['ms']:.3g}" for n in options.scores)
                print(f"| {name}, B{batch} T{length}, {kernel} | {cells} |", flush=True)
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
