"""Time and memory of the rows."""

import dataclasses
import functools
import gc
import json
import math
import statistics
import sys
import time

import numpy as np

from benchmarks import processes
from benchmarks.attention.backends import compiled, gpu
from benchmarks.attention.cases import Case
from benchmarks.attention.contestants import NoWeights, ops
from benchmarks.attention.rows import rows

SHORT = 16  # the length that a process has run before its memory is measured
BURST = 0.05  # seconds of calls that make one sample of time
ROUNDS = 5  # at least this many, however long they take


@functools.cache
def product(dtype, size):
    """A function that multiplies two square matrices."""
    x = np.random.default_rng(0).standard_normal((size, size), dtype="float32")
    inputs = [ops.convert_to_tensor(x, dtype=dtype) for _ in range(2)]
    layer = NoWeights(ops.matmul)
    # Not by the layer's call, which would cast bfloat16 to the layer's float32.
    return compiled(layer.function, layer, inputs, Case(1, size, size, 1, training=False))


def rate(dtype, small):
    """10⁹ operations a second of a large matrix product, as it goes now."""
    size = 256 if small else 8192 if gpu() else 2048
    run = product(dtype, size)
    run()
    return 2 * size**3 / statistics.median(milliseconds(run, ROUNDS)) / 1e6


def milliseconds(run, repeats, seconds=math.inf):
    """Of each call, wall clock: one at least, then until `seconds` are spent."""
    times, started = [], time.perf_counter()
    while not times or (len(times) < repeats and time.perf_counter() - started < seconds):
        before = time.perf_counter()
        run()
        times.append((time.perf_counter() - before) * 1000)
    return times


def in_turns(runs, repeats, seconds):
    """(wall, CPU) milliseconds per call of each of `runs`, burst by burst, taking turns."""
    calls = {
        who: math.ceil(BURST / max(milliseconds(run, 1)[0] / 1000, 1e-6))
        for who, run in runs.items()
    }
    samples, started = {who: [] for who in runs}, time.perf_counter()
    for turn in range(repeats):
        if turn >= ROUNDS and time.perf_counter() - started > seconds:
            break
        for who, run in runs.items():
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(calls[who]):
                run()
            spent = time.perf_counter() - wall, time.process_time() - processor
            samples[who].append([part / calls[who] * 1000 for part in spent])
    return samples


def summary(times):
    """Median and quartiles."""
    quartiles = np.quantile(times, (0.25, 0.75))
    return {
        "ms": statistics.median(times),
        "quartiles_ms": [float(quartile) for quartile in quartiles],
        "samples": len(times),
    }


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
        found["apart"] = distance(*first.values())
    del first
    for who, samples in in_turns(runs, options.repeats, options.seconds).items():
        wall, processor = zip(*samples, strict=True)
        found[who] = {**summary(wall), "processor_ms": statistics.median(processor)}
    return found


def brief(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def distance(x, y):
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30))


def differs(found, dtype):
    """Whether the two sides, which should have computed the same, did not."""
    # A GPU may multiply float32 with fewer bits.
    exact = dtype == "float32" and not gpu()
    return not found.get("apart", 0) < (1e-3 if exact else 0.1)


def peak_bytes():
    """The most memory that this process has held so far, on the GPU if there is one."""
    found = gpu()
    return found[1] if found else processes.peak_bytes()


def grown(contestant, case):
    """How many GB this process grows by, once it has run at a short length; and its time then."""
    contestant.prepare(dataclasses.replace(case, length=SHORT))()
    before = peak_bytes()
    run = contestant.prepare(case)
    run()
    size = peak_bytes() - before
    return {"GB": size / 1e9, **summary(milliseconds(run, ROUNDS, seconds=5))}


def measure_memory(row, options):
    """The sides of a memory row, each measured in a separate process."""
    found = {}
    for who in row.sides:
        if who == "other" and row.heavy and not options.keras_too:
            continue
        try:
            found[who] = in_a_process(row.name, who, options.small)
        except Exception as error:
            found[who] = {"error": brief(error)}
    return found


def in_a_process(name, who, small):
    arguments = ["--measure", name, who, *["--small"] * small]
    return json.loads(processes.answer("benchmarks.attention", *arguments))


def measured(row, options):
    """A row as the report has it."""
    speed = rate(row.dtype, options.small)
    found = (measure_time if row.figure == "time" else measure_memory)(row, options)
    gc.collect()
    ours, other = found.get("ours", {}), found.get("other", {})
    key = "ms" if row.figure == "time" else "GB"
    ratio = ours[key] / other[key] if key in ours and other.get(key, 0) > 0 else None
    limit = row.gflop / speed * 1000
    judged = ratio if row.judged == "ratio" else ours.get("GB")
    verdict = None if options.small else reached(judged, row.bar, row.aim)
    return {
        "name": row.name,
        "work": row.work,
        "figure": row.figure,
        "layer": row.ours[0].label,
        "against": row.other[0].label if row.other else None,
        **found,
        "ratio": ratio,
        "judged": row.judged,
        "bar": row.bar,
        "aim": row.aim,
        "reached": "differs" if differs(found, row.dtype) else verdict,
        "gflop": row.gflop,
        "product_gflops": speed,
        "limit_ms": limit,
        "over_limit": ours["ms"] / limit if "ms" in ours else None,
    }


def reached(judged, bar, aim):
    if bar is None:
        return None
    if judged is None:
        return "not measured"
    return "aim" if aim is not None and judged <= aim else "bar" if judged <= bar else "missed"


def series(options):
    """What the plot shows: memory and time over the length, from separate processes."""
    found = []
    for row in rows(options.small)["over"].values():
        result = measured(row, options)
        found.append(
            {
                "length": row.ours[1].length,
                "limit_ms": result["limit_ms"],
                **{who: result[who] for who in row.sides if who in result},
            }
        )
        print(f"{row.name}: {row.work}", file=sys.stderr)
    return found
