"""Time and memory of attention, ours against Keras's: `python -m benchmarks.attention`.

One run measures a list of rows (`--rows` chooses some) on the backend that
KERAS_BACKEND names, and prints them as a Markdown table.

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

Figures of a machine that others share are noisy: the JSON file has quartiles and CPU time beside
each median.

`--small` shrinks everything, and runs one row of each kind, only to see that it runs: its figures
mean nothing. A GPU has rows of its own, of `benchmarks.gpu`.
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
    OUR_MODEL,
    OURS,
    SHAW,
    THEIR_MODEL,
    Case,
    Row,
    decoding_contestant,
    ops,
    reading_contestant,
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


# Batch, length, features, heads.
SIZES = {"short": (32, 80, 128, 8), "medium": (8, 512, 512, 8), "long": (1, 4096, 512, 8)}
# Training steps with what most models have, forward passes, and numbers of bfloat16.
WORKS = {
    "forward": {"training": False},
    "training": {},
    "padding": {"padding": True},
    "causal": {"causal": True},
    "dropout": {"dropout": 0.1},
    "bias": {"bias": True},
    "all-three": {"padding": True, "causal": True, "dropout": 0.1},
    "bfloat16-forward": {"training": False, "dtype": "bfloat16"},
    "bfloat16-training": {"dtype": "bfloat16"},
    "model": {},
}
WITH_XLA = ("forward", "training", "model")
PARTS = {1024: (1, 1024, 128, 8), 2048: (1, 2048, 256, 4)}
MODELS = {"ours": OUR_MODEL, "other": THEIR_MODEL, "work": "two-block model: {}"}
MEMORY = {"figure": "memory"}
# Keras's layer would take over 13 GB.
ALONE = {**MEMORY, "other": None}


def layer_rows(size):
    """Layers, and the same attention within a model."""
    for name, sizes in SIZES.items():
        for work, given in WORKS.items():
            sides = MODELS if work == "model" else {}
            yield Row(f"{name}-{work}", size(Case(*sizes, **given)), **sides)
            if BACKEND == "tensorflow" and work in WITH_XLA:
                case = size(Case(*sizes, **given, xla=True))
                yield Row(f"{name}-{work}-xla", case, **sides)


def long_rows(size):
    masked = size(Case(1, 16384, 256, 4, padding=True, causal=True, dropout=0.1))
    yield Row("masked-memory", masked, **ALONE)
    yield Row("longest-memory", size(Case(1, 32768, 256, 4)), **ALONE)
    near, far = (size(Case(1, length, 256, 4, window=128)) for length in (8192, 65536))
    yield Row("window-training", near)
    yield Row("window-memory", near, **MEMORY)
    against = {"other": OURS, "plain": near, "work": f"{{}}, against T{near.length}"}
    yield Row("window-growth", far, **against, same=False)


def position_rows(size):
    """Against ours without; Shaw's embeddings against Keras's layer without."""
    for length, sizes in PARTS.items():
        plain = size(Case(*sizes))
        for position in ("alibi", "relative_bias", "rotary"):
            case = dataclasses.replace(plain, position=position)
            against = {"other": OURS, "plain": plain, "work": "{}, against ours without"}
            yield Row(f"{position}-{length}", case, **against, same=False)
        case, work = size(Case(*sizes, max_distance=16)), "{}, against Keras's plain attention"
        yield Row(f"shaw-{length}", case, SHAW, plain=plain, work=work, same=False)


def decoding_rows(size, dtype="float32"):
    case = size(Case(16, 8192, 512, 8, training=False, dtype=dtype))
    work = f"one token over a cache of {case.length}, B{case.batch} H{case.heads} K{case.key_dim}"
    many, one = decoding_contestant(case.heads), decoding_contestant(1)
    against = f"{work}, multi-query against multi-head"
    yield Row("decoding", case, one, many, work=against, same=False)
    reading = reading_contestant(case.heads)
    yield Row(
        "decoding-reading", case, many, reading, work=f"{work}, against reading it", same=False
    )


def rows(small):
    """The rows of the table by name."""
    kinds = layer_rows, long_rows, position_rows, decoding_rows
    return {row.name: row for kind in kinds for row in kind(size(small))}


def over(small):
    """What the plot shows: a training step as of the row `masked-memory`, over the length."""
    found = {}
    for length in (1024, 2048) if small else (512, 1024, 2048, 4096, 8192, 16384):
        case = size(small)(Case(1, length, 256, 4, padding=True, causal=True, dropout=0.1))
        found[f"over-{length}"] = Row(
            f"over-{length}", case, **(ALONE if length > 8192 else MEMORY)
        )
    return found


# Rows that run the same code as others, at sizes that --small makes alike.
ALIKE = re.compile("medium-|long-(forward|model)|.*-forward-xla|(?!masked).*-memory")

# Their figures


def brief(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def measure_time(row, options):
    """The sides of a time row: figures, or an "error"; and how far "apart" their results are."""
    runs, first, found = {}, {}, {}
    for who, (contestant, case) in row.sides.items():
        try:
            run = contestant.prepare(case)
            first[who] = np.array(ops.convert_to_numpy(ops.cast(run()[0], "float32")))
            runs[who] = run
        except Exception as error:  # out of memory, most likely: the other rows go on
            found[who] = {"error": brief(error)}
    if row.same and not row.case.dropout and len(first) == 2:
        found["apart"] = runner.distance(*first.values())
    del first
    return {**found, **runner.in_turns(runs, options.repeats, options.seconds)}


def side(name, who, small, length=None):
    """What runs a side of a row, of another length if it is given."""
    contestant, case = (rows(small) | over(small))[name].sides[who]
    return contestant.prepare(dataclasses.replace(case, length=length or case.length))


def measure_memory(row, options):
    """The sides of a memory row, each measured in a separate process, after T16."""
    found = {}
    for who in row.sides:
        given = row.name, who, options.small
        try:
            grown = runner.growth("attention", "side", [*given, 16], given)
            found[who] = {"GB": grown.pop("MiB") * 2**20 / 1e9, **grown}
        except RuntimeError as error:
            found[who] = {"error": brief(error)}
    return found


def differs(found, dtype):
    """Whether the two sides, which should have computed the same, did not."""
    # A GPU may multiply float32 with fewer bits.
    exact = dtype == "float32" and not gpu()
    return not found.get("apart", 0) < (1e-3 if exact else 0.1)


def measured(row, options):
    """A row as the report has it."""
    found = (measure_time if row.figure == "time" else measure_memory)(row, options)
    gc.collect()
    ours, other = found.get("ours", {}), found.get("other", {})
    key = "ms" if row.figure == "time" else "GB"
    return {
        "name": row.name,
        "work": row.work.format(row.case),
        "figure": row.figure,
        "layer": row.ours.label,
        "against": row.other and row.other.label,
        **found,
        "ratio": ours[key] / other[key] if key in ours and other.get(key, 0) > 0 else None,
        "differs": differs(found, row.case.dtype),
    }


# As a table and as a plot

HEAD = "| row | work | ours | other | ours / other |\n|" + " --- |" * 5


def line(result):
    """A row as a line of the table."""

    def side(who):
        found = result.get(who)
        if found is None:
            return ""
        if "error" in found:
            return found["error"].replace("|", "/")
        time_taken = f"{found['ms']:.4g} ms"
        return f"{found['GB']:.3f} GB, {time_taken}" if "GB" in found else time_taken

    ratio = "differs" if result["differs"] else result["ratio"] and f"{result['ratio']:.3g}"
    cells = result["name"], result["work"], side("ours"), side("other"), ratio or ""
    return f"| {' | '.join(cells)} |"


def failed(report):
    """Whether a side of ours failed, or two sides differ that should compute the same."""
    return any("error" in row.get("ours", {}) or row["differs"] for row in report["rows"])


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
        panel.set_xticks(lengths, map(str, lengths))
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
    names = list(rows(small=False))
    quick = [name for name in names if not ALIKE.match(name)]
    arguments = {"--plot": {"type": pathlib.Path, "help": words}}
    options = runner.parsed(__doc__, arguments, names, quick)
    every = rows(options.small)
    picked = [every[name] for name in options.rows]
    if options.plot:
        picked += over(options.small).values()
    report = runner.report((measured(row, options) for row in picked), options, line, HEAD)
    if options.plot:
        plot(report, options.plot)
    return int(failed(report))


if __name__ == "__main__":
    sys.exit(main())
