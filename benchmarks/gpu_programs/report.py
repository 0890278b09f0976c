"""The figures of programs, as lines, a table and a file."""

import importlib.metadata
import json
import re
import statistics

import keras

from benchmarks.gpu_programs import costs, trips

BACKEND = keras.backend.backend()
COLUMNS = ("program", "MiB", "GB moved", "TFLOP", "least ms", "float32 copies", "loops", "calls")
TITLE = """# Programs compiled for an H100, not run

Made by `python -m benchmarks.gpu_programs`, on a machine without a GPU. bfloat16, 2 sequences of
8,192 unless it says otherwise, 512 features, 8 heads; training: with the gradients of weights and
inputs. In brackets: divided by Keras's or KerasHub's.

- MiB: of temporary arrays.
- GB moved: what fusions and calls read and write, summed from the program's text.
- least ms: for each of them the time for that at 3.35 TB/s, or for its products at 989 TFLOP/s
  (float32: 494), whichever is longer; their sum.
- float32 copies: new arrays of float32 with as many elements as the heads of all queries.
- loops: how often they run, those inside others in brackets. ≈ is a mean over blocks of queries,
  which do not see as many keys.
- Of two branches, those rows that have no gaps take counts, as all rows of this table do.
"""


def measured(rows, texts=None):
    """The figures of each row by name, which are printed."""
    found = {}
    print(header(), flush=True)
    for row in rows:
        keras.backend.clear_session()
        keras.config.set_dtype_policy("mixed_bfloat16")
        try:
            with trips.recorded() as loops:
                compiled = row.compile()
            if texts:
                texts.mkdir(parents=True, exist_ok=True)
                name = re.sub(r"\W+", "-", f"{BACKEND} {row.name}")
                (texts / f"{name}.txt").write_text(compiled.text, encoding="utf-8")
            found[row.name] = figures(row, compiled, loops)
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            found[row.name] = {"error": f"{type(error).__name__}: {said}"[:200]}
        print(line(row.name, found), flush=True)
    return found


def figures(row, compiled, loops):
    assumed = statistics.mean(loops) if loops else 1
    total = costs.costs(compiled.text, assumed, row.copies_of)
    return {
        "other": row.other,
        "temporary_MiB": round(compiled.temporary / 2**20, 1),
        "moved_GB": round(total.bytes / 1e9, 3),
        "TFLOP": round(total.operations / 1e12, 4),
        "least_ms": round(1e3 * total.seconds, 3),
        "float32_copies": len(total.copies) if row.copies_of else None,
        "fusions": total.fusions,
        "loops": total.loops,
        "assumed_trips": assumed if any(trips is None for trips, _ in total.loops) else None,
        "calls": dict(total.calls),
    }


def header():
    return f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


def line(name, found):
    """A row as a line of the table."""
    one = found[name]
    if "error" in one:
        return f"| {name} | {one['error'].replace('|', '/')} |" + " |" * (len(COLUMNS) - 2)
    other = found.get(one["other"], {})

    def number(key):
        ratio = f" ({one[key] / other[key]:.2g})" if other.get(key) else ""
        size = f"{one[key]:,.0f}" if one[key] >= 1000 else f"{one[key]:.4g}"
        return size + ratio

    loops = " ".join(
        "(" * depth
        + (f"≈{one['assumed_trips']:.3g}" if count is None else str(count))
        + ")" * depth
        for count, depth in one["loops"]
    )
    calls = ", ".join(f"{count} {name.lstrip('_')}" for name, count in one["calls"].items())
    copies = one["float32_copies"]
    cells = [
        name,
        *map(number, ("temporary_MiB", "moved_GB", "TFLOP", "least_ms")),
        "" if copies is None else str(copies),
        loops,
        calls.replace("cudnn$", "cuDNN ").replace("cublas$", "cuBLAS "),
    ]
    return f"| {' | '.join(cells)} |"


def write(found, path):
    """Puts figures into a file, and all of the file's into a page beside it."""
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    before = report.get(BACKEND, {}).get("programs", {})
    packages = ("jax", "jaxlib", "keras", *(["tensorflow"] if BACKEND == "tensorflow" else []))
    versions = {name: importlib.metadata.version(name) for name in packages}
    report[BACKEND] = {"versions": versions, "programs": {**before, **found}}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    page = [TITLE]
    for backend, made in report.items():
        named = {"jax": "JAX", "tensorflow": "TensorFlow, by its HLO"}[backend]
        versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
        lines = (line(name, made["programs"]) for name in made["programs"])
        page += [f"## {named}\n", f"{versions}.\n", header(), *lines, ""]
    path.with_suffix(".md").write_text("\n".join(page), encoding="utf-8")
