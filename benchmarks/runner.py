"""What all benchmarks share: options, sides that take turns, memory of processes, and files.

A file of results is a JSON object: what was measured and on what, and "rows", a list of objects.
Each field and each row is a line of the file. In a row "ours" and "other" are the two sides, with
"ms" of wall-clock time, "processor_ms" of all cores, or memory in "GB"; "ratio" is that of ours to
the other's, "speedup" that of the other's to ours.
"""

import argparse
import datetime
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
from benchmarks.attention.backends import BACKEND, gpu
from keras_attention.backend import backend

RESULTS = pathlib.Path(__file__).parent / "results"
BURST = 0.05  # seconds of calls that make one sample of time
ROUNDS = 5  # at least this many, however long they take

# Options and files


def parser(description, rows=None, seconds=30):
    """The options of all programs, and with `rows`, their names, those of sides in turns."""
    found = argparse.ArgumentParser(description=description.splitlines()[0])
    found.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    found.add_argument("--output", type=pathlib.Path, help="a JSON file for the figures")
    if rows is not None:
        found.add_argument("--rows", default=",".join(rows), help="only these")
        found.add_argument("--seconds", type=float, default=seconds, help="for each row")
        found.add_argument("--repeats", type=int, default=21, help="bursts of each side of a row")
    return found


def parsed(parser, names=None, argv=None):
    """The options given, with the names of `--rows`; `--small` takes two bursts of each side."""
    options = parser.parse_args(argv)
    if options.small and "repeats" in options:
        options.repeats, options.seconds = 2, 0.2
    if names is not None:
        options.rows = options.rows.split(",")
        unknown = [name for name in options.rows if name not in names]
        if unknown:
            parser.error(f"no row is named {unknown[0]!r}; there are {', '.join(names)}")
    return options


def report(rows, options, text, head="", identity=(), **about):
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
    """Writes a report."""

    def written(value):
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row) for row in value)
            return f"[\n  {rows}\n ]"
        return json.dumps(value)

    fields = ",\n ".join(f'"{name}": {written(value)}' for name, value in report.items())
    path.write_text(f"{{\n {fields}\n}}\n", encoding="utf-8")


def read(path):
    """A report."""
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
            "processor": _processor("model name") or platform.processor(),
            "vector extensions": [x for x in wanted if x in _processor("flags").split()],
            "device": found[0] if found else "CPU",
        },
        # TensorFlow's default depends on the CPU.
        "onednn": backend.prefers_whole_rows(None) if BACKEND == "tensorflow" else None,
        # What changes the speed of TensorFlow's products; unset is its own choice.
        "environment": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        **{name: x for name, x in vars(options).items() if name in ("small", "repeats", "seconds")},
    }


def _processor(field):
    """A line about the CPU, if the system has one, or an empty line."""
    path = pathlib.Path("/proc/cpuinfo")
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
    found = {}
    for who, both in samples.items():
        walls, processors = zip(*both, strict=True)
        found[who] = {**summary(walls), "processor_ms": statistics.median(processors)}
    return found


def summary(times):
    """Median and quartiles."""
    quartiles = [float(quartile) for quartile in np.quantile(times, (0.25, 0.75))]
    return {"ms": statistics.median(times), "quartiles_ms": quartiles, "samples": len(times)}


def distance(x, y):
    """How far x is from y, by the norm of y."""
    return float(np.linalg.norm(x - y) / max(np.linalg.norm(y), 1e-30))


def compare(description, names, rows, about=lambda options: {}, **flags):
    """A program of rows whose two sides take turns.

    `rows(names, options)` are those of `turns`, `about(options)` is what the file says besides, and
    `flags` are further options with what they do.
    """
    arguments = parser(description, names)
    for flag, words in flags.items():
        arguments.add_argument(f"--{flag}", action="store_true", help=words)
    options = parsed(arguments, names)
    turns(rows(options.rows, options), options, **about(options))


def turns(rows, options, **about):
    """Reports rows, (name, what it is, our side, the other).

    Sides are functions that do the work once.
    """

    def measured():
        for name, work, ours, other in rows:
            found = in_turns({"ours": ours, "other": other}, options.repeats, options.seconds)
            speedup = found["other"]["ms"] / found["ours"]["ms"]
            yield {"name": name, "work": work, **found, "speedup": speedup}

    def text(row):
        times = (f"{row[who]['ms']:.4g} ms" for who in ("ours", "other"))
        cells = row["name"], row["work"], *times, f"{row['speedup']:.3g}"
        return f"| {' | '.join(cells)} |"

    head = "| row | what | ours | other | other / ours |\n|" + " --- |" * 5
    return report(measured(), options, text, head, **about)


# Memory


def in_a_process(module, function, *arguments):
    """What `benchmarks.module.function` answers to arguments in a process of its own, as JSON."""
    command = [sys.executable, "-m", __name__, module, function, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [""]
        raise RuntimeError(f"exit {done.returncode}: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def growth(warm_up, work):
    """The MiB by which the peak of this process or its GPU grows in `work`, and what that gives."""
    warm_up()
    before = _peak_bytes()
    found = work()
    return (_peak_bytes() - before) / 2**20, found


def _peak_bytes():
    """The most memory that this process has had so far, on the GPU if there is one."""
    found = gpu()
    if found:
        return found[1]
    status = pathlib.Path("/proc/self/status")
    high = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if high:
        # Not `ru_maxrss`: on Linux a process inherits that from the one which started it.
        return int(high[1]) * 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


if __name__ == "__main__":
    module, function, arguments = sys.argv[1:]
    called = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    print(json.dumps(called(*json.loads(arguments))))
