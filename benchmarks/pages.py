"""The tables of results in docs/, made of benchmarks/results: `python -m benchmarks.pages`.

A page has a table between two comments, `<!-- measured: NAME -->` and `<!-- end -->`; NAME is one
of `TABLES`. A test compares the pages with what the files say now.
"""

import argparse
import functools
import json
import pathlib
import re
import statistics

from benchmarks import attention, eager, models

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- measured: ([\w ,]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# The settings that CPU results exist for, as readers know them, and the ends of files' names.
REST = {"JAX": "_jax", "PyTorch": "_torch"}
SETTINGS = {"TensorFlow, oneDNN on": "", "TensorFlow, oneDNN off": "_onednn_off", **REST}
SHORTER = {"TensorFlow": "_tensorflow", "oneDNN off": "_onednn_off", **REST}
BY_BACKEND = {title: f"_{name}" for name, title in BACKENDS.items()}
# Files


@functools.cache
def results(name):
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def named(name):
    """The rows of a file by their names."""
    return {row["name"]: row for row in results(name)["rows"]}


def measured(name, shown):
    """A table, after a line of what its file was measured on."""
    report = results(name)
    backend, versions, machine = (report[field] for field in ("backend", "versions", "machine"))
    parts = [f"{BACKENDS[backend]} {versions[backend]}", f"Keras {versions['keras']}"]
    if report.get("onednn") is not None:
        parts.append(f"oneDNN {'on' if report['onednn'] else 'off'}")
    if machine["device"] == "CPU":
        cores = machine["cores"]
        parts.append(f"{cores} core{'s' * (cores > 1)} of {machine['processor']}")
        parts += [name for name in machine.get("vector extensions", ()) if name != "avx2"]
    else:
        parts.append(machine["device"])
    return f"{', '.join(parts)}; {report['date'][:10]}.\n\n{shown}"


# Cells and tables


def table(head, rows):
    """Markdown of a table; rows without any figure are left out."""
    lines = [head, ["---"] * len(head), *(row for row in rows if any(row[1:]))]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def grid(corner, columns, rows, cell):
    """A table of `cell(column, row)`: columns by their titles, and titles by rows."""
    lines = (
        [title, *(cell(column, row) for column in columns.values())] for row, title in rows.items()
    )
    return table([corner, *columns], lines)


def across(corner, name, settings, cell, rows):
    """A table with a column for each setting: `rows` are titles by the names of rows."""
    files = {title: named(f"{name}{end}") for title, end in settings.items()}
    return grid(corner, files, rows, lambda file, row: cell(file.get(row)))


def figure(value, unit=""):
    """A ratio or a time to two or three digits, nothing where there is none."""
    if value is None:
        return ""
    form = ",.0f" if value >= 100 else ".3g" if value >= 10 else ".2f" if value >= 0.1 else ".2g"
    return f"{value:{form}}{unit}"


def ratio(row):
    """Ours / other of a row of benchmarks.attention."""
    return figure(row and row["ratio"])


def ratio_or_memory(row):
    """The same, but for memory of which Keras's layer would take over 13 GB."""
    alone = row and row["name"] in ("masked-memory", "longest-memory")
    return figure(row["ours"]["GB"], " GB") if alone else ratio(row)


def over_other(row):
    """Ours / other of a row of two sides in turns."""
    return figure(row and row["ours"]["ms"] / row["other"]["ms"])


def seconds(row):
    """What both sides of a row took."""
    return [f"{row[side]['ms'] / 1000:.2f} s" for side in ("ours", "other")]


# Tables


def sized(batch, length, features, heads):
    return f"T{length} (B{batch} D{features} H{heads})"


LENGTHS = {sized(*four): name for name, four in attention.SIZES.items()}
SUMMARY = {f"{name}-training": f"training step, {size}" for size, name in LENGTHS.items()}
SUMMARY["long-all-three"] = "training step, T4096, padding, causal, dropout 0.1"
SUMMARY["window-training"] = "T8192 (B1 D256 H4), a window of 257 keys"
# The second line of a position has its size alone.
POSITIONS = {
    name.format(length): f"{work}, {sized(*four)}" if length == 1024 else sized(*four)
    for name, (work, *_) in attention.POSITIONS.items()
    for length, four in attention.PARTS.items()
}
LONG = {name: work for name, (work, *_) in attention.LONG.items()}
EAGER = {name: work for name, (work, _) in eager.ROWS.items()}
TIME = "time, ours / Keras's layer"
# With a column for each setting: what is over the titles, the files, what a cell has, and titles by
# the names of rows.
ACROSS = {
    "summary": (TIME, "attention", SETTINGS, ratio, SUMMARY),
    "positions": ("time of a training step", "attention", SETTINGS, ratio, POSITIONS),
    "long": ("", "attention", SETTINGS, ratio_or_memory, LONG),
    "eager": ("time", "eager", BY_BACKEND, over_other, EAGER),
}


def by_length(end):
    """All tasks of benchmarks.attention at three lengths, for one setting."""
    found = named(f"attention{end}")
    cell = lambda length, work: ratio(found.get(work.format(length)))  # noqa: E731
    works = {name: work for name, (work, *_) in attention.WORKS.items()}
    return measured(f"attention{end}", grid(TIME, LENGTHS, works, cell))


def over_length():
    """Time and memory of a training step over the length, as in the plot."""
    rows = []
    for row in results("attention_over_length")["rows"]:
        sides = [row.get(who, {}) for who in ("ours", "other")]
        rows.append([f"{int(row['name'].removeprefix('over-')):,}"])
        rows[-1] += [f"{side['ms']:,.0f} ms" if "ms" in side else "" for side in sides]
        rows[-1] += [figure(side.get("GB"), " GB") for side in sides]
    head = ["length", "time, ours", "time, Keras's", "memory, ours", "memory, Keras's"]
    return measured("attention_over_length", table(head, rows))


def gpu(name):
    """What was measured on a GPU, of a backend."""
    report, rows = results(name), []
    for row in report["rows"]:
        times = (
            found["error"].replace("|", "/")[:60] if "error" in found else figure(found.get("ms"))
            for found in (row.get("ours") or {}, row.get("other") or {})
        )
        rows.append([row["work"], row["against"], *times, ratio(row)])
    head = ["work", "against", "ours, ms", "other, ms", "ours / other"]
    checks = [check["agrees"] for check in report["kernels"]]
    apart = len(checks) - sum(checks)
    checked = f"{len(checks)} comparisons of kernels with `reference`, {apart} apart."
    shown = measured(name, f"{checked}\n\n{table(head, rows)}")
    return f"### {BACKENDS[report['backend']]} on a GPU\n\n{shown}"


def whole_models():
    """Whole models against KerasHub's and `transformers`'s."""
    found, rows = named("models"), []
    for name, (*words, _) in models.ROWS.items():
        if not name.startswith(("language", "chat")):
            rows.append([*words, *seconds(found[name]), over_other(found[name])])
    return measured("models", table(["work", "against", "ours", "other", "ours / other"], rows))


def chats():
    """`generate` beside that of `transformers` on PyTorch, on each backend."""
    rows = []
    for name, backend in BACKENDS.items():
        for row, found in named(f"chat_{name}").items():
            rows.append([backend, models.ROWS[row][0], *seconds(found), over_other(found)])
    head = ["ours on", "6 layers of 256", "ours", "theirs", "ours / theirs"]
    return measured("chat_tensorflow", table(head, rows))


def generation():
    """Whole translations and training steps against KerasHub's, on TensorFlow."""
    found, rows = [named(name) for name in ("generation", "generation_onednn_off")], []
    for name, *words in (
        ("greedy", "64 tokens, greedy", "KerasHub, greedy"),
        ("beams", "64 tokens, four beams", "KerasHub, greedy"),
        ("longer", "512 tokens, greedy", "64 tokens, greedy, ours"),
        ("training", "a training step, 64 sentences, without XLA", "KerasHub"),
    ):
        rows.append(words)
        for file in found:
            words += [" / ".join(seconds(file[name])), figure(file[name]["speedup"])]
    times = ["oneDNN on: times", "other / ours", "oneDNN off: times", "other / ours"]
    return table(["ours", "other", *times], rows)


def llama_block():
    """Llama's block against KerasHub's on each setting, and against that of `transformers`."""
    columns = {title: (end, "keras_hub") for title, end in SHORTER.items()}
    columns |= {"`transformers`": ("_torch", "transformers")}
    columns |= {"compiled": ("_torch", "transformers_compiled")}
    works = {"forward": "forward", "training": "training step", "tokens": "64 tokens, caches"}
    rows = {
        f"{dtype}-2048-{work}": f"{dtype}, T2048, {words}"
        for dtype in ("bfloat16", "float32")
        for work, words in works.items()
    }

    def cell(column, row):
        end, other = column
        return over_other(named(f"decoder_block{end}").get(f"{row}-{other}"))

    return grid("", columns, rows, cell)


def square_sequences():
    """What attention adds to a recurrent decoder, by its size."""
    rows, kinds = [], ("without_attention", "with_attention")
    for hidden in (4, 8, 11):
        report = results(f"square_sequences_{hidden}")
        pairs = list(zip(*(report["test_losses"][kind] for kind in kinds), strict=True))
        rows.append([str(hidden)])
        for kind in kinds:
            mean, deviation = report["means"][kind], report["standard_deviations"][kind]
            rows[-1] += [f"{mean:.4f} ± {deviation:.4f}", f"{report['parameters'][kind]:,}"]
        rows[-1].append(f"{sum(attention < plain for plain, attention in pairs)} of {len(pairs)}")
    rows.append(["the rule of geometry", f"{report['rule_loss']:.4f}", "", "", "", ""])
    head = ["`--hidden`", "without attention", "weights", "with attention", "weights"]
    return table([*head, "seeds in which attention is better"], rows)


# Titles of a layer and the softmax that it is compared with, and what is divided by what.
LINEAR = {
    "`{0}`": ("steps 8192 {0}", "steps 8192 {1}"),
    "`{0}`, memory": ("memory 8192 {0}", "memory 8192 {1}"),
}


def linear():
    """Layers in linear time, against softmax; of memory, those of low rank."""
    files, rows = {}, {}
    for title, end in SHORTER.items():
        found = results(f"linear{end}")["rows"]
        files[title] = {"{figure} {length} {name}".format(**row): row["value"] for row in found}
    low_rank = dict.fromkeys(("LinformerAttention", "NystromAttention"), "softmax of all pairs")
    softmax = {"MultiHeadAttention", *low_rank.values()}
    for name in sorted({row["name"] for row in found} - softmax):
        both = name, low_rank.get(name, "MultiHeadAttention")
        for title, (one, other) in LINEAR.items():
            if name in low_rank or not title.endswith("memory"):
                rows[one.format(*both), other.format(*both)] = title.format(name)

    def cell(file, row):
        one, other = map(file.get, row)
        return figure(one / other if one and other else None)

    return grid("T8192", files, rows, cell)


def long_sequences():
    """Time and memory of a training step over 16,384 tokens, on TensorFlow."""
    titles = {
        "all pairs": "`MultiHeadAttention`, all pairs",
        "window": "the same in a window of 256 tokens",
        "LinearAttention": "`LinearAttention`",
    }
    rows = [
        [titles[name], figure(row["seconds"], " s"), figure(row["MiB"], " MiB")]
        for name, row in named("long_sequences_tensorflow").items()
    ]
    return measured("long_sequences_tensorflow", table(["layer", "CPU time", "memory"], rows))


def mean(rows, value, **wanted):
    """The mean of a field of the rows that have some others, or None where there are none."""
    found = [row[value] for row in rows if value in row and wanted.items() <= row.items()]
    return statistics.fmean(found) if found else None


def choosing():
    """Mechanisms by task: accuracy, and time and memory of a step beside softmax's."""
    rows = results("choosing")["rows"]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    # Lists are as short as what is copied.
    timed = [task for task in tasks if task != "lists"]
    # Where runs took only some steps, for their time and memory, those are quoted.
    untested = {row["task"] for row in rows if "accuracy" not in row}
    costs = [row for row in rows if row["task"] not in untested or "accuracy" not in row]
    lines = []
    for name in dict.fromkeys(row["mechanism"] for row in costs):
        accuracies = (mean(rows, "accuracy", task=task, mechanism=name) for task in tasks)
        lines.append([name, *("" if x is None else f"{x:.3f}" for x in accuracies)])
        for task in timed:
            time, beside = (
                mean(costs, "cpu_ms", task=task, mechanism=one) for one in (name, "softmax")
            )
            lines[-1].append(figure(time / beside if time and beside else None))
        lines[-1].append(figure(mean(costs, "mib", task="reviews", mechanism=name)))
    head = ["mechanism", *tasks, *(f"time, {task}" for task in timed), "MiB, reviews"]
    return table(head, lines)


def movie_reviews():
    """Test accuracies of the models of movie reviews, over the seeds that were measured."""
    lines, rows = [], results("imdb_accuracy")["rows"]
    for name in dict.fromkeys(row["model"] for row in rows):
        runs = [row for row in rows if row["model"] == name]
        seeds = ", ".join(str(run["seed"]) for run in runs)
        each = ", ".join(f"{run['test_accuracy']:.4f}" for run in runs)
        average = f"**{mean(runs, 'test_accuracy'):.4f}**"
        lines.append([f"`{name}`", seeds, str(runs[0]["epochs"]), average, each])
    return table(["model", "seeds", "epochs", "mean", "each"], lines)


TABLES = {
    **{name: functools.partial(across, *given) for name, given in ACROSS.items()},
    **{title.lower(): functools.partial(by_length, end) for title, end in SETTINGS.items()},
    "models": whole_models,
    "gpu": lambda: "\n".join(map(gpu, ("gpu_jax", "gpu_torch"))),
    **{
        table.__name__.replace("_", " "): table
        for table in (
            *(linear, long_sequences, over_length, generation, llama_block, chats),
            *(square_sequences, movie_reviews, choosing),
        )
    },
}


def replaced(page):
    """A page's text with its tables as the files say now."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}", page)


def pages():
    """The pages that have tables."""
    every = (ROOT / "docs").glob("**/*.md")
    return [page for page in sorted(every) if BLOCK.search(page.read_text(encoding="utf-8"))]


def main():
    argparse.ArgumentParser(
        prog="python -m benchmarks.pages", description=__doc__.splitlines()[0]
    ).parse_args()
    for path in pages():
        path.write_text(replaced(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
