"""The tables of results in docs/, made of benchmarks/results: `python -m benchmarks.pages`.

A page has a table between two comments, `<!-- measured: NAME -->` and `<!-- end -->`; NAME is one
of `TABLES`. A test compares the pages with what the files say now.
"""

import argparse
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"(<!-- measured: ([\w ,]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
# The settings that CPU results exist for, as readers know them, and the ends of files' names.
SETTINGS = {
    "TensorFlow, oneDNN on": "",
    "TensorFlow, oneDNN off": "_onednn_off",
    "JAX": "_jax",
    "PyTorch": "_torch",
}
SHORTER = {
    "TensorFlow": "_tensorflow",
    "oneDNN off": "_onednn_off",
    "JAX": "_jax",
    "PyTorch": "_torch",
}
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


def results(name):
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def named(name):
    """The rows of a file by their names."""
    return {row["name"]: row for row in results(name)["rows"]}


def table(head, rows):
    """Markdown of a table; rows without any figure are left out."""
    lines = [head, ["---"] * len(head), *(row for row in rows if any(row[1:]))]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def across(corner, name, settings, rows, cell):
    """A table with a column for each setting: `rows` are titles by the names of rows."""
    found = [named(f"{name}{end}") for end in settings.values()]
    rows = [[title, *(cell(file.get(row)) for file in found)] for row, title in rows.items()]
    return table([corner, *settings], rows)


def figure(value, unit=""):
    """A ratio or a time to two or three digits, nothing where there is none."""
    if value is None:
        return ""
    form = ",.0f" if value >= 100 else ".3g" if value >= 10 else ".2f" if value >= 0.1 else ".2g"
    return f"{value:{form}}{unit}"


def ratio(row):
    """Ours / other of a row of benchmarks.attention."""
    return figure(row and row["ratio"])


def over_other(row):
    """Ours / other of a row of two sides in turns."""
    return figure(row and row["ours"]["ms"] / row["other"]["ms"])


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


def summary():
    """A training step at each length, and a window, on each setting."""
    rows = {f"{length}-training": f"training step, {size}" for length, size in LENGTHS.items()}
    rows["long-all-three"] = "training step, T4096, padding, causal, dropout 0.1"
    rows["window-training"] = "T8192 (B1 D256 H4), a window of 257 keys"
    return across("time, ours / Keras's layer", "attention", SETTINGS, rows, ratio)


def attention(end):
    """All tasks at three lengths, for one setting."""
    found = named(f"attention{end}")
    rows = [
        [title, *(ratio(found.get(f"{length}-{task}")) for length in LENGTHS)]
        for task, title in TASKS.items()
    ]
    shown = table(["time, ours / Keras's layer", *LENGTHS.values()], rows)
    return f"{surroundings(results(f'attention{end}'))}\n\n{shown}"


def positions():
    """What a position costs in training, on each setting."""
    rows = {}
    for name, words in {
        "rotary": "`rotary`, against ours without",
        "alibi": "`alibi`, against ours without",
        "relative_bias": "`relative_bias`, against ours without",
        "shaw": "Shaw's embeddings, against Keras's layer without",
    }.items():
        rows[f"{name}-1024"] = f"{words}, T1024 (B1 D128 H8)"
        rows[f"{name}-2048"] = "T2048 (B1 D256 H4)"
    return across("time of a training step", "attention", SETTINGS, rows, ratio)


def long():
    """Windows, memory and decoding, on each setting."""
    rows = {
        "window-training": "window of 257 keys, T8192, time, ours / Keras's",
        "window-memory": "window of 257 keys, T8192, memory, ours / Keras's",
        "window-growth": "the window's time at T65536 / at T8192",
        "masked-memory": "memory at T16384, padding, causal, dropout",
        "longest-memory": "memory at T32768",
        "decoding-reading": "a token over a cache of 8192 / reading the cache",
        "decoding": "a token over a cache, one key head / eight",
    }

    def cell(row):
        # Of Keras's layer these would take over 13 GB.
        if row and row["name"] in ("masked-memory", "longest-memory"):
            return figure(row["ours"]["GB"], " GB")
        return ratio(row)

    return across("", "attention", SETTINGS, rows, cell)


def over_length():
    """Time and memory of a training step over the length, as in the plot."""
    report = results("attention_over_length")

    def side(found, kind):
        if not found or kind not in found:
            return ""
        return figure(found[kind], " GB") if kind == "GB" else f"{found['ms']:,.0f} ms"

    rows = [
        [
            f"{int(row['name'].removeprefix('over-')):,}",
            *(side(row.get(who), kind) for kind in ("ms", "GB") for who in ("ours", "other")),
        ]
        for row in report["rows"]
    ]
    head = ["length", "time, ours", "time, Keras's", "memory, ours", "memory, Keras's"]
    return f"{surroundings(report)}\n\n{table(head, rows)}"


def eager():
    """Calls outside of compiled programs."""
    rows = {
        "layer": "`MultiHeadAttention` / Keras's",
        "causal": "the same, causal",
        "block": "`TransformerBlock` / KerasHub's `TransformerEncoder`",
        "token": "a token with a cache / without, both ours",
    }
    settings = {title: f"_{name}" for name, title in BACKENDS.items()}
    return across("time", "eager", settings, rows, over_other)


def gpu():
    """What was measured on a GPU, of each backend that was."""
    return "\n".join(_gpu(results(name)) for name in ("gpu_jax", "gpu_torch"))


def _gpu(report):
    rows = []
    for row in report["rows"]:
        ours, other = row.get("ours") or {}, row.get("other") or {}
        times = (
            found["error"].replace("|", "/")[:60] if "error" in found else figure(found.get("ms"))
            for found in (ours, other)
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
    for name, work, against in (
        ("gpt2-training", "GPT-2, training step, B4 T128, dropout 0.1", "KerasHub"),
        ("bert-training", "BERT, training step, B4 T128, dropout 0.1", "KerasHub"),
        ("gpt2-greedy", "GPT-2, 64 tokens after 32, greedy", "KerasHub"),
        ("gpt2-greedy-rows", "the same of 8 prompts at once", "KerasHub"),
        ("gpt2-static-cache", "GPT-2, 64 tokens after 32", "`transformers`, static cache"),
    ):
        row = found[name]
        times = (f"{row[side]['ms'] / 1000:.2f} s" for side in ("ours", "other"))
        rows.append([work, against, *times, over_other(row)])
    head = ["work", "against", "ours", "other", "ours / other"]
    return f"{surroundings(results('models'))}\n\n{table(head, rows)}"


def generation():
    """Whole translations and training steps against KerasHub's, on TensorFlow."""
    found, rows = [named(name) for name in ("generation", "generation_onednn_off")], []
    for name, work, against in (
        ("greedy", "64 tokens, greedy", "KerasHub, greedy"),
        ("beams", "64 tokens, four beams", "KerasHub, greedy"),
        ("longer", "512 tokens, greedy", "64 tokens, greedy, ours"),
        ("training", "a training step, 64 sentences, without XLA", "KerasHub"),
    ):
        rows.append([work, against])
        for file in found:
            ours, other = (file[name][side]["ms"] / 1000 for side in ("ours", "other"))
            rows[-1] += [f"{ours:.2f} s / {other:.2f} s", figure(file[name]["speedup"])]
    head = ["ours", "other"]
    for setting in ("on", "off"):
        head += [f"oneDNN {setting}: times", "other / ours"]
    return table(head, rows)


def llama_block():
    """Llama's block against KerasHub's on each setting, and against that of `transformers`."""
    found = [named(f"decoder_block{end}") for end in SHORTER.values()]
    columns = [(file, "keras_hub") for file in found]
    columns += [(found[-1], other) for other in ("transformers", "transformers_compiled")]
    works = {"forward": "forward", "training": "training step", "tokens": "64 tokens, caches"}
    rows = []
    for dtype in ("bfloat16", "float32"):
        for length in (512, 2048):
            for work, words in works.items():
                name = f"{dtype}-{length}-{work}"
                cells = (over_other(file.get(f"{name}-{other}")) for file, other in columns)
                rows.append([f"{dtype}, T{length}, {words}", *cells])
    return table(["", *SHORTER, "`transformers`", "compiled"], rows)


def square_sequences():
    """What attention adds to a recurrent decoder, by its size."""

    def cell(report, kind):
        mean, deviation = report["means"][kind], report["standard_deviations"][kind]
        return f"{mean:.4f} ± {deviation:.4f}"

    rows, kinds = [], ("without_attention", "with_attention")
    for hidden in (4, 8, 11):
        report = results(f"square_sequences_{hidden}")
        pairs = list(zip(*(report["test_losses"][kind] for kind in kinds), strict=True))
        lower = sum(attention < plain for plain, attention in pairs)
        rows.append([str(hidden)])
        for kind in kinds:
            rows[-1] += [cell(report, kind), f"{report['parameters'][kind]:,}"]
        rows[-1].append(f"{lower} of {len(pairs)}")
    rows.append(["the rule of geometry", f"{report['rule_loss']:.4f}", "", "", "", ""])
    head = ["`--hidden`", "without attention", "weights", "with attention", "weights"]
    return table([*head, "seeds in which attention is better"], rows)


def linear():
    """Layers in linear time, against softmax."""
    found = [
        {(row["figure"], row["length"], row["name"]): row["value"] for row in report["rows"]}
        for report in (results(f"linear{end}") for end in SHORTER.values())
    ]

    def line(title, one, other):
        cells = (file[one] / file[other] if {one, other} <= file.keys() else None for file in found)
        return [title, *map(figure, cells)]

    softmax, all_pairs, rows = "MultiHeadAttention", "softmax of all pairs", []
    for name in sorted({name for file in found for *_, name in file} - {softmax, all_pairs}):
        low_rank = name in ("LinformerAttention", "NystromAttention")
        other = all_pairs if low_rank else softmax
        for length in (2048, 8192):
            title = f"step, `{name}` / softmax, T{length}"
            rows.append(line(title, ("steps", length, name), ("steps", length, other)))
        for figures, end in (("steps", ""), ("steps_kept", ", memory kept")):
            title = f"step, `{name}`, T65536 / T8192{end}"
            rows.append(line(title, (figures, 65536, name), (figures, 8192, name)))
        if low_rank:
            title = f"memory of a step, `{name}` / softmax, T8192"
            rows.append(line(title, ("memory", 8192, name), ("memory", 8192, other)))
        else:
            title = f"token, `{name}`, after 100,000 / after 10"
            rows.append(line(title, ("tokens", 100_000, name), ("tokens", 10, name)))
    return table(["CPU time", *SHORTER], rows)


def choosing():
    """Mechanisms by task: accuracy, and time and memory of a step beside softmax's."""
    rows = results("choosing")["rows"]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    # Where runs took only some steps, for their time and memory, those are quoted.
    untested = {row["task"] for row in rows if "accuracy" not in row}
    costs = [row for row in rows if row["task"] not in untested or "accuracy" not in row]

    def mean(rows, task, name, value):
        found = [
            row[value]
            for row in rows
            if value in row and (row["task"], row["mechanism"]) == (task, name)
        ]
        return sum(found) / len(found) if found else None

    lines = []
    for name in dict.fromkeys(row["mechanism"] for row in costs):
        accuracies = (mean(rows, task, name, "accuracy") for task in tasks)
        line = [name, *("" if x is None else f"{x:.3f}" for x in accuracies)]
        for task in tasks:
            time, beside = (mean(costs, task, one, "cpu_ms") for one in (name, "softmax"))
            line.append(figure(time / beside if time and beside else None))
        line.append(figure(mean(costs, "reviews", name, "mib")))
        weights = mean(costs, "reviews", name, "weights")
        lines.append([*line, "" if weights is None else f"{weights / 1000:,.0f} K"])
    head = ["mechanism", *tasks, *(f"time, {task}" for task in tasks), "MiB, reviews"]
    return table([*head, "weights, reviews"], lines)


def movie_reviews():
    """Test accuracies of the models of movie reviews, over the seeds that were measured."""
    lines, measured = [], results("imdb_accuracy")["rows"]
    for name in dict.fromkeys(row["model"] for row in measured):
        runs = [row for row in measured if row["model"] == name]
        found = [run["test_accuracy"] for run in runs]
        seeds = ", ".join(str(run["seed"]) for run in runs)
        mean = f"**{sum(found) / len(found):.4f}**"
        each = ", ".join(f"{accuracy:.4f}" for accuracy in found)
        lines.append([f"`{name}`", seeds, str(runs[0]["epochs"]), mean, each])
    return table(["model", "seeds", "epochs", "mean", "each"], lines)


TABLES = {
    "linear": linear,
    "summary": summary,
    **{title.lower(): lambda end=end: attention(end) for title, end in SETTINGS.items()},
    "positions": positions,
    "long": long,
    "over length": over_length,
    "eager": eager,
    "gpu": gpu,
    "models": models,
    "generation": generation,
    "llama block": llama_block,
    "square sequences": square_sequences,
    "movie reviews": movie_reviews,
    "choosing": choosing,
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
