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


def measured(shown, *names):
    """A table, after a line of what its files were measured on: the machine of the first."""
    reports = [results(name) for name in names]
    frameworks = (f"{BACKENDS[who]} {x['versions'][who]}" for x in reports if (who := x["backend"]))
    machine, keras = reports[0]["machine"], reports[0]["versions"]["keras"]
    parts = [*dict.fromkeys(frameworks), f"Keras {keras}"]
    if len(names) == 1 and reports[0].get("onednn") is not None:
        parts.append(f"oneDNN {'on' if reports[0]['onednn'] else 'off'}")
    if machine["device"] == "CPU":
        cores = machine["cores"]
        parts.append(f"{cores} core{'s' * (cores > 1)} of {machine['processor']}")
        parts += [name for name in machine.get("vector extensions", ()) if name != "avx2"]
    else:
        parts.append(machine["device"])
    return f"{', '.join(parts)}; {reports[0]['date'][:10]}.\n\n{shown}"


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


def across(corner, name, settings, cell, rows, machine=True):
    """A table with a column for each setting: `rows` are titles by the names of rows."""
    names = {title: f"{name}{end}" for title, end in settings.items()}
    files = {title: named(name) for title, name in names.items()}
    shown = grid(corner, files, rows, lambda file, row: cell(file.get(row)))
    return measured(shown, *names.values()) if machine else shown


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


SIZES = {name: sized(*four) for name, four in attention.SIZES.items()}
SUMMARY = {
    **{f"{name}-training": size for name, size in SIZES.items()},
    "long-all-three": "T4096, padding, causal, dropout 0.1",
    "long-bias": "T4096, a bias for all pairs",
    "medium-bfloat16-forward": "forward, T512, bfloat16",
    "long-bfloat16-training": "T4096, bfloat16",
    "long-training-xla": "T4096, XLA",
}
POSITIONS = {
    name.format(length): f"{titled}, T{length}"
    for name, titled in (
        *((f"{name}-{{}}", f"`{name}`") for name in ("rotary", "alibi", "relative_bias")),
        ("shaw-{}", "Shaw's embeddings"),
    )
    for length in attention.PARTS
}
LONG = {name: work for name, (work, *_) in attention.LONG.items()}
EAGER = {name: eager.ROWS[name][0] for name in ("layer", "block", "token")}
CHATS = {name: models.ROWS[name][0] for name in ("chat-first", "chat-tokens", "chat-rows")}
GPU = {
    "layer-2048-plain": "T2048",
    "layer-8192-plain": "T8192",
    "layer-32768-plain": "T32768",
    "layer-2048-padding-dropout": "T2048, padding, dropout 0.1",
    "layer-8192-padding-dropout": "T8192, padding, dropout 0.1",
    "padded-left-8192": "T8192, causal, padding on the left",
    "causal-window-8192": "T8192, a causal window of 128 keys",
    "causal-rotary-grouped-8192": "T8192, causal, `rotary` and grouped heads / plain causal",
    "alibi-2048": "T2048, causal, `alibi` / plain causal",
    "alibi-8192": "T8192, causal, `alibi` / plain causal",
    "block-8192": "Llama's block, T8192 / KerasHub's",
    "alone-bfloat16-8192-training": "`ops.attend`, padding, T8192 / PyTorch's kernel without",
    "bfloat16-512-tokens-transformers": "Llama's block, 64 tokens with caches / `transformers`",
    "decoding-reading": "a token over a cache of 8192 / reading the cache",
}
ON_GPU = {"JAX": "_jax", "PyTorch": "_torch"}
TIME = "time, ours / Keras's layer"
# With a column for each setting: what is over the titles, the files, what a cell has, titles by the
# names of rows, and whether the machine is named, where the page does not say it.
ACROSS = {
    "summary": ("training step, ours / Keras's", "attention", SETTINGS, ratio, SUMMARY),
    "positions": ("training step, with / without", "attention", SETTINGS, ratio, POSITIONS, False),
    "long": ("", "attention", SETTINGS, ratio_or_memory, LONG, False),
    "chats": ("time, ours / `transformers`", "chat", BY_BACKEND, over_other, CHATS),
    "eager": ("time", "eager", BY_BACKEND, over_other, EAGER, False),
    "gpu": (TIME, "gpu", ON_GPU, ratio, GPU),
}


def whole_models():
    """Whole models against KerasHub's and `transformers`'s."""
    found, rows = named("models"), []
    for name, (*words, _) in models.ROWS.items():
        if not name.startswith(("language", "chat", "cache")):
            rows.append([*words, *seconds(found[name]), over_other(found[name])])
    return measured(table(["work", "against", "ours", "other", "ours / other"], rows), "models")


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
    return measured(table(["layer", "CPU time", "memory"], rows), "long_sequences_tensorflow")


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

    def quickest(task, mechanism):
        """The time of a step in the run that the machine disturbed least, or None."""
        same = [row for row in costs if (row["task"], row["mechanism"]) == (task, mechanism)]
        return min((row["cpu_ms"] for row in same), default=None)

    lines = []
    for name in dict.fromkeys(row["mechanism"] for row in costs):
        lines.append([name])
        for task in tasks:
            same = [row for row in rows if (row["task"], row["mechanism"]) == (task, name)]
            found = sorted(row["accuracy"] for row in same if "accuracy" in row)
            # Seeds are told apart where they differ by more than tests do.
            if found and found[-1] - found[0] < 0.05:
                found = [statistics.fmean(found)]
            lines[-1].append(" to ".join(f"{x:.3f}" for x in (*found[:1], *found[1:][-1:])))
        for task in timed:
            time, beside = quickest(task, name), quickest(task, "softmax")
            lines[-1].append(figure(time / beside if time and beside else None))
        lines[-1].append(figure(mean(costs, "mib", task="reviews", mechanism=name)))
    head = ["mechanism", *tasks, *(f"time, {task}" for task in timed), "MiB, reviews"]
    return table(head, lines)


def movie_reviews():
    """Test accuracies of the models of movie reviews, over the seeds that were measured."""
    lines, rows = [], results("imdb_accuracy")["rows"]
    kinds = dict.fromkeys((row["model"], row.get("backend")) for row in rows)
    for name, backend in kinds:
        runs = [row for row in rows if (row["model"], row.get("backend")) == (name, backend)]
        seeds = ", ".join(str(run["seed"]) for run in runs)
        each = ", ".join(f"{run['test_accuracy']:.4f}" for run in runs)
        average = f"**{mean(runs, 'test_accuracy'):.4f}**"
        title = f"`{name}`, {backend}" if backend else f"`{name}`"
        lines.append([title, seeds, str(runs[0]["epochs"]), average, each])
    return table(["model", "seeds", "epochs", "mean", "each"], lines)


def deleted_words():
    """How far the classifier's probability moves without some words, over the test reviews."""
    found = results("imdb_deletion")
    lines = []
    for row in found["rows"]:
        same = [other for other in found["rows"] if other["trained with"] == row["trained with"]]
        (least,) = (other["change"] for other in same if other["deleted"] == "at random")
        ratio, flipped = f"{row['change'] / least:.1f}", f"{row['other label']:.1%}"
        names = row["trained with"], row["deleted"]
        lines.append([*names, f"{row['change']:.3f}", ratio, flipped])
    head = ["trained with", f"{found['words']} words deleted", "change of the probability"]
    return table([*head, "/ at random", "other label"], lines)


TABLES = {
    **{name: functools.partial(across, *given) for name, given in ACROSS.items()},
    "models": whole_models,
    **{
        table.__name__.replace("_", " "): table
        for table in (
            *(linear, long_sequences, generation, llama_block),
            *(square_sequences, movie_reviews, deleted_words, choosing),
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
