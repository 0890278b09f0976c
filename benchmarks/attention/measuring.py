"""Time and memory of the rows."""

import dataclasses
import gc

import numpy as np

from benchmarks import runner
from benchmarks.attention.backends import gpu
from benchmarks.attention.contestants import ops
from benchmarks.attention.rows import rows

SHORT = 16  # the length that a process has run before its memory is measured


def measure_time(row, options):
    """The sides of a time row: figures, or an "error"; and how far "apart" their results are."""
    runs, first, found = {}, {}, {}
    for who, (contestant, case) in row.sides.items():
        try:
            run = contestant.prepare(case)
            first[who] = np.array(ops.convert_to_numpy(ops.cast(run()[0], "float32")))
            run()
            runs[who] = run
        except Exception as error:  # out of memory, most likely: the other rows go on
            found[who] = {"error": brief(error)}
    if row.same and not row.ours[1].dropout and len(first) == 2:
        found["apart"] = runner.distance(*first.values())
    del first
    return {**found, **runner.in_turns(runs, options.repeats, options.seconds)}


def brief(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def differs(found, dtype):
    """Whether the two sides, which should have computed the same, did not."""
    # A GPU may multiply float32 with fewer bits.
    exact = dtype == "float32" and not gpu()
    return not found.get("apart", 0) < (1e-3 if exact else 0.1)


def grown(name, who, small):
    """How many GB this process grows by, once it has run at a short length; and its time then."""
    every = {name: row for group in rows(small).values() for name, row in group.items()}
    contestant, case = every[name].sides[who]
    short = dataclasses.replace(case, length=SHORT)

    def started(case):
        run = contestant.prepare(case)
        run()
        return run

    size, run = runner.growth(lambda: started(short), lambda: started(case))
    times = runner.milliseconds(run, runner.ROUNDS, seconds=5)
    return {"GB": size * 2**20 / 1e9, **runner.summary(times)}


def measure_memory(row, options):
    """The sides of a memory row, each measured in a separate process."""
    found = {}
    for who in row.sides:
        if who == "other" and row.heavy and not options.keras_too:
            continue
        try:
            given = row.name, who, options.small
            found[who] = runner.in_a_process("attention.measuring", "grown", *given)
        except Exception as error:
            found[who] = {"error": brief(error)}
    return found


def measured(row, options):
    """A row as the report has it."""
    found = (measure_time if row.figure == "time" else measure_memory)(row, options)
    gc.collect()
    ours, other = found.get("ours", {}), found.get("other", {})
    key = "ms" if row.figure == "time" else "GB"
    return {
        "name": row.name,
        "work": row.work,
        "figure": row.figure,
        "layer": row.ours[0].label,
        "against": row.other[0].label if row.other else None,
        **found,
        "ratio": ours[key] / other[key] if key in ours and other.get(key, 0) > 0 else None,
        "differs": differs(found, row.dtype),
    }
