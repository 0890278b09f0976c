"""Time and memory of attention, ours against Keras's: `python -m benchmarks.attention`.

One run measures rows (`--rows` chooses some) on the backend that KERAS_BACKEND names, and prints
them as a Markdown table.

- "forward" is a layer compiled as the backend does (tf.function, jax.jit; PyTorch runs eagerly,
  without gradients). "training step" is the gradient of sum(output²) by the input and all weights,
  compiled likewise. With "XLA", TensorFlow compiles with `jit_compile=True`; JAX always does, and
  PyTorch does not have it. "two-block model" is `train_on_batch` of a Keras model, with SGD and the
  mean squared error. Numbers are float32 unless a row says otherwise.
- Time: both sides have the same weights and inputs, are compiled and warmed up, and then take
  turns, a burst of calls each, so that a machine that slows down slows both. Quoted are medians of
  wall-clock time and the ratio of these medians. With dropout off, the two must also agree.
- Memory: the peak growth of a separate process over its peak once it had run the same on a short
  sequence: of resident memory, or on a GPU of the memory in use there. GB are 10⁹ bytes. Compiling
  counts where the backend compiles anew for a new length. The milliseconds of these rows are those
  of that process, the two sides one after the other, not in turns: a rough guide.

The JSON file has quartiles and CPU time beside each median. `--small` shrinks everything, and runs
one row of each kind. A GPU has rows of its own, of `benchmarks.gpu`.
"""

import dataclasses
import gc
import pathlib
import re
import sys

import numpy as np

from benchmarks import runner
from benchmarks.backends import BACKEND, gpu
from benchmarks.contestants import (
    DECODING,
    OUR_MODEL,
    OURS,
    READING,
    SHAW,
    THEIR_MODEL,
    Case,
    Row,
    ops,
)

# The rows: which sizes, and against what


def size(small):
    """A function from a case to itself, or if `small`, to one that takes milliseconds."""
    return shrunk if small else lambda case: case


def shrunk(case):
    return dataclasses.replace(
        case,
        batch=min(case.batch, 2),
        length=max(16, case.length // 32),
        features=case.features // 8,
        window=case.window and max(1, case.window // 8),
        max_distance=case.max_distance and max(1, case.max_distance // 4),
    )


def made(works, sizes, size):
    """Rows of works at sizes: by name, with that of the sizes, words and options of cases and rows.

    Of a row's, "plain" is how the other's case differs.
    """
    for name, (work, given, options) in works.items():
        for which, four in sizes.items():
            case = Case(*four, **given)
            plain = size(dataclasses.replace(case, **options.get("plain", {})))
            row = {**options, "plain": plain, "work": f"{size(case)}, {work}"}
            yield Row(name.format(which), size(case), **row)


# Batch, length, features, heads.
SIZES = {"short": (32, 80, 128, 8), "medium": (8, 512, 512, 8), "long": (1, 4096, 512, 8)}
PARTS = {1024: (1, 1024, 128, 8), 2048: (1, 2048, 256, 4)}
ONE = {length: (1, length, 256, 4) for length in (2**power for power in range(9, 17))}
MASKED, WINDOW, XLA = (
    {"padding": True, "causal": True, "dropout": 0.1},
    {"window": 128},
    {"xla": True},
)
FORWARD, BFLOAT16, MEMORY = {"training": False}, {"dtype": "bfloat16"}, {"figure": "memory"}
MODELS, APART = {"ours": OUR_MODEL, "other": THEIR_MODEL}, {"same": False}
# Training steps with what most models have, forward passes, numbers of bfloat16, and the same
# attention within a model.
WORKS = {
    "{}-forward": ("forward", FORWARD, {}),
    "{}-training": ("training step", {}, {}),
    "{}-padding": ("training step, padding mask", {"padding": True}, {}),
    "{}-causal": ("training step, causal", {"causal": True}, {}),
    "{}-dropout": ("training step, dropout 0.1", {"dropout": 0.1}, {}),
    "{}-all-three": ("training step, padding, causal, dropout", MASKED, {}),
    "{}-bias": ("training step, a bias for all pairs", {"bias": True}, {}),
    "{}-model": ("training step, model of two blocks", {}, MODELS),
    "{}-forward-xla": ("forward, XLA", {**FORWARD, **XLA}, {}),
    "{}-training-xla": ("training step, XLA", XLA, {}),
    "{}-model-xla": ("training step, model of two blocks, XLA", XLA, MODELS),
    "{}-bfloat16-forward": ("forward, bfloat16", {**FORWARD, **BFLOAT16}, {}),
    "{}-bfloat16-training": ("training step, bfloat16", BFLOAT16, {}),
}
WITHOUT = {"other": OURS, "plain": {"position": None}, **APART}
BIASED = {"position": "relative_bias"}
SHAWS = {"ours": SHAW, "plain": {"max_distance": None}, **APART}
POSITIONS = {
    "rotary-{}": ("`rotary`, against ours without", {"position": "rotary"}, WITHOUT),
    "alibi-{}": ("`alibi`, against ours without", {"position": "alibi"}, WITHOUT),
    "relative_bias-{}": ("`relative_bias`, against ours without", BIASED, WITHOUT),
    "shaw-{}": ("Shaw's embeddings, against Keras's layer without", {"max_distance": 16}, SHAWS),
}
SHORTER = {"other": OURS, "plain": {"length": 8192}, **APART}
ALONE = {**MEMORY, "other": None}  # Keras's layer would take over 13 GB.
READ = {"ours": DECODING, "other": READING, **APART}
EIGHT = {"ours": DECODING, "other": DECODING, "plain": {"key_heads": None}, **APART}
ONE_HEAD = {**FORWARD, "key_heads": 1}
CACHE, CACHED = (16, 8192, 512, 8), "a token over a cache of 8192 / reading the cache"
KEYS = "window of 257 keys, T8192"
# With their sizes.
LONG = {
    "window-training": (f"{KEYS}, time, ours / Keras's", WINDOW, {}, ONE[8192]),
    "window-memory": (f"{KEYS}, memory, ours / Keras's", WINDOW, MEMORY, ONE[8192]),
    "window-growth": ("the window's time at T65536 / at T8192", WINDOW, SHORTER, ONE[65536]),
    "masked-memory": ("memory at T16384, padding, causal, dropout", MASKED, ALONE, ONE[16384]),
    "longest-memory": ("memory at T32768", {}, ALONE, ONE[32768]),
    "decoding-reading": (CACHED, FORWARD, READ, CACHE),
    "decoding": ("a token over a cache, one key head / eight", ONE_HEAD, EIGHT, CACHE),
}
# What the plot shows.
OVER = {
    f"over-{length}": ("as masked-memory", MASKED, ALONE if length > 8192 else MEMORY, sizes)
    for length, sizes in ONE.items()
    if length <= 16384
}


def each(works, size, **options):
    """Rows of works that have their own sizes, with further options of the case."""
    for name, (work, given, row, sizes) in works.items():
        yield from made({name: (work, {**given, **options}, row)}, {"": sizes}, size)


def rows(small):
    """All rows by name, those of the plot among them."""
    sized = size(small)
    found = *made(WORKS, SIZES, sized), *made(POSITIONS, PARTS, sized), *each(LONG | OVER, sized)
    # JAX always compiles with XLA, and PyTorch does not have it.
    if BACKEND != "tensorflow":
        found = [row for row in found if not row.case.xla]
    return {row.name: row for row in found}


# Rows that run the same code as others, at sizes that --small makes alike.
ALIKE = re.compile("medium-|long-(forward|model)|.*-forward-xla|(?!masked).*-memory")

# Their figures


def brief(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def side(name, who, small, length=None):
    """What runs a side of a row, of another length if it is given."""
    contestant, case = rows(small)[name].sides[who]
    return contestant.prepare(dataclasses.replace(case, length=length or case.length))


def grown(*given):
    """The memory of a side in a process of its own, after T16."""
    found = runner.growth("attention", "side", [*given, 16], given)
    return {"GB": found.pop("MiB") * 2**20 / 1e9, **found}


def differs(found, dtype):
    """Whether the two sides, which should have computed the same, did not."""
    # A GPU may multiply float32 with fewer bits.
    exact = dtype == "float32" and not gpu()
    return not found.get("apart", 0) < (1e-3 if exact else 0.1)


def measured(row, options):
    """A row as the report has it: sides have figures or an "error", and are so far "apart"."""
    runs, first, found = {}, {}, {}
    for who, (contestant, case) in row.sides.items():
        try:
            if row.figure == "memory":
                found[who] = grown(row.name, who, options.small)
            else:
                run = contestant.prepare(case)
                first[who] = ops.convert_to_numpy(ops.cast(run()[0], "float32"))
                runs[who] = run
        except Exception as error:  # out of memory, most likely: the other rows go on
            found[who] = {"error": f"{type(error).__name__}: {str(error).strip()[:200]}"}
    if row.same and not row.case.dropout and len(first) == 2:
        found["apart"] = runner.distance(*map(np.array, first.values()))
    del first
    found |= runner.in_turns(runs, options.repeats, options.seconds)
    del runs
    gc.collect()
    ours, other = found.get("ours", {}), found.get("other", {})
    key = "ms" if row.figure == "time" else "GB"
    return {
        "name": row.name,
        "work": row.work,
        "figure": row.figure,
        "layer": row.ours.label,
        "against": row.other and row.other.label,
        **found,
        "ratio": ours[key] / other[key] if key in ours and other.get(key, 0) > 0 else None,
        "differs": differs(found, row.case.dtype),
    }


def report(rows, options, **about):
    """Measures rows and reports them, and whether one of ours failed or two sides differ."""
    found = (measured(row, options) for row in rows)
    found = runner.report(found, options, runner.line, runner.HEAD, **about)
    failed = any("error" in row.get("ours", {}) or row["differs"] for row in found["rows"])
    return found, failed


def plot(report, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [row for row in report["rows"] if row["name"].startswith("over-")]
    lengths = [int(point["name"].removeprefix("over-")) for point in points]
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, key, label in zip(panels, ("ms", "GB"), ("milliseconds", "GB"), strict=True):
        for who, name in (("ours", "keras_attention"), ("other", "keras.layers")):
            values = [point.get(who, {}).get(key, np.nan) for point in points]
            panel.plot(lengths, values, "o-", label=name)
        panel.set(xscale="log", yscale="log", xlabel="T", ylabel=label)
        panel.set_xticks(lengths, [*map(str, lengths)])
        panel.minorticks_off()
        panel.legend()
    small = " (small: means nothing)" if report["small"] else ""
    figure.suptitle(
        "Training step, padding mask, causal, dropout 0.1, D256 H4, "
        f"{report['backend']}, {report['machine']['device']}{small}"
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main():
    words = "measure time and memory over T, and draw them here (only this: --rows '')"
    names = [name for name in rows(small=False) if name not in OVER]
    quick = [name for name in names if not ALIKE.match(name)]
    arguments = {"--plot": {"type": pathlib.Path, "help": words}}
    options = runner.parsed(__doc__, arguments, names, quick)
    every = rows(options.small)
    picked = options.rows + ([*OVER] if options.plot else [])
    found, failed = report([every[name] for name in picked], options)
    if options.plot:
        plot(found, options.plot)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
