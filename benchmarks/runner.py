"""What all benchmarks share: options, sides that take turns, memory of processes, and files.

A file of results is a JSON object: what was measured and on what, and "rows", a list of objects.
Each field and each row is a line of the file. In a row "ours" and "other" are the two sides, with
"ms" of wall-clock time, "processor_ms" of all cores, or memory in "GB"; "ratio" is that of ours to
the other's, "speedup" that of the other's to ours.
"""

import argparse
import datetime
import fnmatch
import importlib
import json
import math
import os
import pathlib
import platform
import re
import resource
import statistics
import subprocess
import sys
import time

import keras
import numpy as np

import keras_attention
from benchmarks.backends import BACKEND, gpu
from keras_attention.backend import backend

RESULTS = pathlib.Path(__file__).parent / "results"
BURST = 0.05  # seconds of calls that make one sample of time
ROUNDS = 5  # at least this many, however long they take

# Options and files


def flag(words):
    """An option that is given or not."""
    return {"action": "store_true", "help": words}


def parsed(description, arguments=(), rows=None, quick=None, seconds=30):
    """The options given: those of all programs, and `arguments`, as argparse has them by name.

    With `rows`, their names, they are those of sides in turns, and `--rows` chooses among the rows:
    by default all, or with `--small` the `quick` ones. `--small` takes two bursts of each side.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    every = {
        "--small": flag("tiny sizes, to see that it runs"),
        "--output": {"type": pathlib.Path, "help": "a JSON file for the figures"},
    }
    if rows is not None:
        every |= {
            "--rows": {"help": "only these: names or patterns such as 'short-*', with commas"},
            "--seconds": {"type": float, "default": seconds, "help": "for each row"},
            "--repeats": {"type": int, "default": 21, "help": "bursts of each side of a row"},
        }
    for name, given in (every | dict(arguments)).items():
        parser.add_argument(name, **given)
    options = parser.parse_args()
    if options.small and "repeats" in options:
        options.repeats, options.seconds = 2, 0.2
    if rows is not None and options.rows is None:
        options.rows = list(quick if options.small and quick else rows)
    elif rows is not None:
        patterns, options.rows = options.rows.split(","), []
        for pattern in filter(None, patterns):
            names = fnmatch.filter(rows, pattern)
            if not names:
                parser.error(f"no row is named {pattern!r}; there are {', '.join(rows)}")
            options.rows += [name for name in names if name not in options.rows]
    return options


def report(rows, options, text=str, head="", identity=(), **about):
    """Prints rows as they are measured, each by `text(row)`, writes and returns the report.

    With `identity`, fields of a row, the file keeps its other rows: runs may add to it, and what
    it says of the machine is of the last one.
    """
    found = {**surroundings(options), **about, "rows": []}
    if identity and options.output and options.output.is_file():
        found["rows"] = read(options.output)["rows"]
    shown = {name: value for name, value in found.items() if not isinstance(value, list)}
    small = "Small sizes: these figures mean nothing." if options.small else ""
    print(json.dumps(shown), small, "", head, sep="\n", flush=True)
    for row in rows:
        same = {field: row[field] for field in identity}
        if identity:
            found["rows"] = [old for old in found["rows"] if not same.items() <= old.items()]
        found["rows"].append(row)
        print(text(row), flush=True)
        if options.output:
            write(options.output, found)
    # What `about` lists may have grown since the last row.
    if options.output:
        write(options.output, found)
    return found


def write(path, report):
    def written(value):
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row) for row in value)
            return f"[\n  {rows}\n ]"
        return json.dumps(value)

    fields = ",\n ".join(f'"{name}": {written(value)}' for name, value in report.items())
    path.write_text(f"{{\n {fields}\n}}\n", encoding="utf-8")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


# What is measured on

SETTINGS = ("TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")


def surroundings(options):
    """Versions, the machine, and the options that change figures."""
    found = gpu()
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "backend": BACKEND,
        "versions": {
            "python": platform.python_version(),
            "keras": keras.__version__,
            BACKEND: __import__(BACKEND).__version__,
            "numpy": np.__version__,
            "keras_attention": keras_attention.__version__,
        },
        "machine": {
            "cores": len(affinity(0)),
            "architecture": platform.machine(),
            "processor": _line_of("/proc/cpuinfo", "model name") or platform.processor(),
            "vector extensions": [
                name for name in wanted if name in _line_of("/proc/cpuinfo", "flags").split()
            ],
            "device": found[0] if found else "CPU",
        },
        # TensorFlow's default depends on the CPU.
        "onednn": backend.prefers_whole_rows(None) if BACKEND == "tensorflow" else None,
        # What changes the speed of TensorFlow's products; unset is its own choice.
        "environment": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        **{name: x for name, x in vars(options).items() if name in ("small", "repeats", "seconds")},
    }


def _line_of(path, field):
    """What a file of the system says of a field, or nothing where it has neither."""
    path = pathlib.Path(path)
    found = re.search(rf"{field}\s*:\s*(.*)", path.read_text()) if path.exists() else None
    return found[1] if found else ""


# Time


def milliseconds(run, repeats, seconds=math.inf):
    """Of each call, wall clock: one at least, then until `seconds` are spent."""
    times, started = [], time.perf_counter()
    while not times or (len(times) < repeats and time.perf_counter() - started < seconds):
        before = time.perf_counter()
        run()
        times.append((time.perf_counter() - before) * 1000)
    return times


def in_turns(runs, repeats, seconds):
    """The figures of a call of each of `runs`, which take turns, burst by burst."""
    calls = {
        # The first call may build and compile.
        who: math.ceil(BURST / max(milliseconds(run, 2)[-1] / 1000, 1e-6))
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
    found = {}
    for who, both in samples.items():
        walls, processors = zip(*both, strict=True)
        found[who] = {**summary(walls), "processor_ms": statistics.median(processors)}
    return found


def summary(times):
    quartiles = [float(quartile) for quartile in np.quantile(times, (0.25, 0.75))]
    return {"ms": statistics.median(times), "quartiles_ms": quartiles, "samples": len(times)}


def distance(x, y):
    """How far x is from y, by the norm of y."""
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30))


def turns(sides, options, **about):
    """Reports the rows that the options name, whose two sides take turns.

    `sides(name, options)` is what a row is, our side and the other: functions that do it once.
    """

    def measured():
        for name in options.rows:
            work, ours, other = sides(name, options)
            found = in_turns({"ours": ours, "other": other}, options.repeats, options.seconds)
            speedup = found["other"]["ms"] / found["ours"]["ms"]
            yield {"name": name, "work": work, **found, "speedup": speedup}

    return report(measured(), options, line, HEAD, **about)


HEAD = "| row | what | ours | other | ours / other |\n|" + " --- |" * 5


def line(row):
    """A row of two sides as a line of a table."""

    def side(found):
        if "error" in found:
            return found["error"].replace("|", "/")
        return ", ".join(f"{found[kind]:.4g} {kind}" for kind in ("GB", "ms") if kind in found)

    ours, other = row.get("ours", {}), row.get("other", {})
    cells = [row["name"], row["work"], side(ours), side(other), ""]
    for kind in ("ms", "GB"):
        if kind in ours and other.get(kind):
            cells[-1] = "differs" if row.get("differs") else f"{ours[kind] / other[kind]:.3g}"
    return f"| {' | '.join(cells)} |"


# Memory


def in_a_process(module, function, *arguments):
    """What `benchmarks.module.function` answers to arguments in a process of its own, as JSON."""
    command = [sys.executable, "-m", __name__, module, function, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [""]
        raise RuntimeError(f"exit {done.returncode}: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def growth(module, function, short, full):
    """The "MiB" by which a process grows in its work, and the time of it when it is repeated.

    `benchmarks.module.function` makes a function that does the work once, of the arguments `full`.
    First the process does that of the arguments `short`, which is not counted.
    """
    return in_a_process("runner", "_growth", module, function, short, full)


def _growth(module, function, short, full):
    make = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    make(*short)()
    before = peak()
    run = make(*full)
    run()
    grown = peak() - before
    return {"MiB": grown, **summary(milliseconds(run, ROUNDS, seconds=5))}


def peak():
    """The most MiB that this process has had so far, on the GPU if there is one."""
    if found := gpu():
        return found[1] / 2**20
    # Not `ru_maxrss`: on Linux a process inherits that from the one which started it.
    if high := _line_of("/proc/self/status", "VmHWM"):
        return int(high.removesuffix("kB")) / 2**10
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    module, function, arguments = sys.argv[1:]
    called = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    print(json.dumps(called(*json.loads(arguments))))
