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

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- measured: ([\w ,]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# The settings that CPU results exist for, as readers know them, and the ends of files' names.
REST = {"JAX": "_jax", "PyTorch": "_torch"}
SETTINGS = {"TensorFlow, oneDNN on": "", "TensorFlow, oneDNN off": "_onednn_off", **REST}
SHORTER = {"TensorFlow": "_tensorflow", "oneDNN off": "_onednn_off", **REST}
EAGER = {title: f"_{name}" for name, title in BACKENDS.items()}
LENGTHS = {
    "short": "T80 (B32 D128 H8)",
    "medium": "T512 (B8 D512 H8)",
    "long": "T4096 (B1 D512 H8)",
}
# Rows of benchmarks.attention by the end of their names.
TASKS = {
    "forward": "forward",
    "training": "training step",
    "padding": "training step, padding mask",
    "causal": "training step, causal",
    "dropout": "training step, dropout 0.1",
    "all-three": "training step, padding, causal, dropout",
    "bias": "training step, a bias for all pairs",
    "model": "training step, model of two blocks",
    "forward-xla": "forward, XLA",
    "training-xla": "training step, XLA",
    "model-xla": "training step, model of two blocks, XLA",
    "bfloat16-forward": "forward, bfloat16",
    "bfloat16-training": "training step, bfloat16",
}


# Files


@functools.cache
def results(name):
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def named(name):
    """The rows of a file by their names."""
    return {row["name"]: row for row in results(name)["rows"]}


def surroundings(report):
    """What a file of results was measured on, in a line."""
    backend = report["backend"]
    versions, machine = report["versions"], report["machine"]
    parts = [f"{BACKENDS[backend]} {versions[backend]}", f"Keras {versions['keras']}"]
    if report.get("onednn") is not None:
        parts.append(f"oneDNN {'on' if report['onednn'] else 'off'}")
    if machine["device"] == "CPU":
        parts.append(f"{machine['cores']} cores of {machine['processor']}")
        parts += [name for name in machine.get("vector extensions", ()) if name != "avx2"]
    else:
        parts.append(machine["device"])
    return f"{', '.join(parts)}; {report['date'][:10]}."


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

# With a column for each setting: what is over the titles, the files, what a cell has, and titles by
# the names of rows.
ACROSS = {
    "summary": (
        *("time, ours / Keras's layer", "attention", SETTINGS, ratio),
        {
            **{f"{length}-training": f"training step, {size}" for length, size in LENGTHS.items()},
            "long-all-three": "training step, T4096, padding, causal, dropout 0.1",
            "window-training": "T8192 (B1 D256 H4), a window of 257 keys",
        },
    ),
    "positions": (
        *("time of a training step", "attention", SETTINGS, ratio),
        {
            "rotary-1024": "`rotary`, against ours without, T1024 (B1 D128 H8)",
            "rotary-2048": "T2048 (B1 D256 H4)",
            "alibi-1024": "`alibi`, against ours without, T1024 (B1 D128 H8)",
            "alibi-2048": "T2048 (B1 D256 H4)",
            "relative_bias-1024": "`relative_bias`, against ours without, T1024 (B1 D128 H8)",
            "relative_bias-2048": "T2048 (B1 D256 H4)",
            "shaw-1024": "Shaw's embeddings, against Keras's layer without, T1024 (B1 D128 H8)",
            "shaw-2048": "T2048 (B1 D256 H4)",
        },
    ),
    "long": (
        *("", "attention", SETTINGS, ratio_or_memory),
        {
            "window-training": "window of 257 keys, T8192, time, ours / Keras's",
            "window-memory": "window of 257 keys, T8192, memory, ours / Keras's",
            "window-growth": "the window's time at T65536 / at T8192",
            "masked-memory": "memory at T16384, padding, causal, dropout",
            "longest-memory": "memory at T32768",
            "decoding-reading": "a token over a cache of 8192 / reading the cache",
            "decoding": "a token over a cache, one key head / eight",
        },
    ),
    "eager": (
        *("time", "eager", EAGER, over_other),
        {
            "layer": "`MultiHeadAttention` / Keras's",
            "causal": "the same, causal",
            "block": "`TransformerBlock` / KerasHub's `TransformerEncoder`",
            "token": "a token with a cache / without, both ours",
        },
    ),
}


def attention(end):
    """All tasks at three lengths, for one setting."""
    found, columns = named(f"attention{end}"), {size: length for length, size in LENGTHS.items()}
    cell = lambda length, task: ratio(found.get(f"{length}-{task}"))  # noqa: E731
    shown = grid("time, ours / Keras's layer", columns, TASKS, cell)
    return f"{surroundings(results(f'attention{end}'))}\n\n{shown}"


def over_length():
    """Time and memory of a training step over the length, as in the plot."""
    rows = []
    for row in results("attention_over_length")["rows"]:
        sides = [row.get(who, {}) for who in ("ours", "other")]
        rows.append([f"{int(row['name'].removeprefix('over-')):,}"])
        rows[-1] += [f"{side['ms']:,.0f} ms" if "ms" in side else "" for side in sides]
        rows[-1] += [figure(side.get("GB"), " GB") for side in sides]
    head = ["length", "time, ours", "time, Keras's", "memory, ours", "memory, Keras's"]
    return f"{surroundings(results('attention_over_length'))}\n\n{table(head, rows)}"


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
    checks = report["kernels"]
    apart = sum(not check["agrees"] for check in checks)
    checked = f"{len(checks)} comparisons of kernels with `reference`, {apart} apart.\n\n"
    title = f"### {BACKENDS[report['backend']]} on a GPU\n\n"
    return f"{title}{surroundings(report)}\n\n{checked}{table(head, rows)}"


def models():
    """Whole models against KerasHub's and `transformers`'s."""
    found, rows = named("models"), []
    for name, *words in (
        ("gpt2-training", "GPT-2, training step, B4 T128, dropout 0.1", "KerasHub"),
        ("bert-training", "BERT, training step, B4 T128, dropout 0.1", "KerasHub"),
        ("gpt2-greedy", "GPT-2, 64 tokens after 32, greedy", "KerasHub"),
        ("gpt2-greedy-rows", "the same of 8 prompts at once", "KerasHub"),
        ("gpt2-static-cache", "GPT-2, 64 tokens after 32", "`transformers`, static cache"),
    ):
        rows.append([*words, *seconds(found[name]), over_other(found[name])])
    head = ["work", "against", "ours", "other", "ours / other"]
    return f"{surroundings(results('models'))}\n\n{table(head, rows)}"


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
        f"{dtype}-{length}-{work}": f"{dtype}, T{length}, {words}"
        for dtype in ("bfloat16", "float32")
        for length in (512, 2048)
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


def linear():
    """Layers in linear time, against softmax."""
    files = {
        title: {
            (row["figure"], row["length"], row["name"]): row["value"]
            for row in results(f"linear{end}")["rows"]
        }
        for title, end in SHORTER.items()
    }
    rows, softmax = {}, "MultiHeadAttention"
    low_rank = dict.fromkeys(("LinformerAttention", "NystromAttention"), "softmax of all pairs")
    names = {name for file in files.values() for *_, name in file} - {softmax, *low_rank.values()}
    for name in sorted(names):
        other = low_rank.get(name, softmax)
        compared = {
            "step, `{}` / softmax, T2048": (("steps", 2048, name), ("steps", 2048, other)),
            "step, `{}` / softmax, T8192": (("steps", 8192, name), ("steps", 8192, other)),
            "step, `{}`, T65536 / T8192": (("steps", 65536, name), ("steps", 8192, name)),
            "step, `{}`, T65536 / T8192, memory kept": (
                *(("steps_kept", 65536, name), ("steps_kept", 8192, name)),
            ),
        }
        if name in low_rank:
            title = "memory of a step, `{}` / softmax, T8192"
            compared[title] = ("memory", 8192, name), ("memory", 8192, other)
        else:
            title = "token, `{}`, after 100,000 / after 10"
            compared[title] = ("tokens", 100_000, name), ("tokens", 10, name)
        rows |= {pair: title.format(name) for title, pair in compared.items()}

    def cell(file, row):
        one, other = map(file.get, row)
        return figure(one / other if one and other else None)

    return grid("CPU time", files, rows, cell)


def mean(rows, value, **wanted):
    """The mean of a field of the rows that have some others, or None where there are none."""
    found = [row[value] for row in rows if value in row and wanted.items() <= row.items()]
    return statistics.fmean(found) if found else None


def choosing():
    """Mechanisms by task: accuracy, and time and memory of a step beside softmax's."""
    rows = results("choosing")["rows"]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    # Where runs took only some steps, for their time and memory, those are quoted.
    untested = {row["task"] for row in rows if "accuracy" not in row}
    costs = [row for row in rows if row["task"] not in untested or "accuracy" not in row]
    lines = []
    for name in dict.fromkeys(row["mechanism"] for row in costs):
        accuracies = (mean(rows, "accuracy", task=task, mechanism=name) for task in tasks)
        lines.append([name, *("" if x is None else f"{x:.3f}" for x in accuracies)])
        for task in tasks:
            time, beside = (
                mean(costs, "cpu_ms", task=task, mechanism=one) for one in (name, "softmax")
            )
            lines[-1].append(figure(time / beside if time and beside else None))
        mib, weights = (
            mean(costs, value, task="reviews", mechanism=name) for value in ("mib", "weights")
        )
        lines[-1] += [figure(mib), "" if weights is None else f"{weights / 1000:,.0f} K"]
    head = ["mechanism", *tasks, *(f"time, {task}" for task in tasks), "MiB, reviews"]
    return table([*head, "weights, reviews"], lines)


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
    **{title.lower(): functools.partial(attention, end) for title, end in SETTINGS.items()},
    "gpu": lambda: "\n".join(map(gpu, ("gpu_jax", "gpu_torch"))),
    **{
        table.__name__.replace("_", " "): table
        for table in (
            *(linear, over_length, models, generation, llama_block),
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
