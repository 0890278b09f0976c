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
# The settings that CPU results exist for, as files and as readers know them.
SETTINGS = {
    "attention": "TensorFlow, oneDNN on",
    "attention_onednn_off": "TensorFlow, oneDNN off",
    "attention_jax": "JAX",
    "attention_torch": "PyTorch",
}
BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
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
    """A file of results, or None before it was measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def table(head, rows):
    """Markdown of a table; rows without any figure are left out."""
    lines = [head, ["---"] * len(head), *(row for row in rows if any(row[1:]))]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def figure(value, unit=""):
    """A ratio or a time to two or three digits, nothing where there is none."""
    if value is None:
        return ""
    form = ",.0f" if value >= 100 else ".3g" if value >= 10 else ".2f" if value >= 0.1 else ".2g"
    return f"{value:{form}}{unit}"


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


def _rows(report):
    return {row["name"]: row for row in report["rows"]}


def summary():
    """A training step at each length, and a window, on each setting."""
    found = {title: _rows(results(name)) for name, title in SETTINGS.items()}
    named = {f"{length}-training": f"training step, {size}" for length, size in LENGTHS.items()}
    named["long-all-three"] = "training step, T4096, padding, causal, dropout 0.1"
    named["window-training"] = "T8192 (B1 D256 H4), a window of 257 keys"
    rows = [
        [title, *(figure(found[setting][name]["ratio"]) for setting in found)]
        for name, title in named.items()
    ]
    return table(["time, ours / Keras's layer", *found], rows)


def attention(name):
    """All tasks at three lengths, for one setting."""
    report = results(name)
    found = _rows(report)
    rows = [
        [title, *(figure(found.get(f"{length}-{task}", {}).get("ratio")) for length in LENGTHS)]
        for task, title in TASKS.items()
    ]
    head = ["time, ours / Keras's layer", *LENGTHS.values()]
    return f"{surroundings(report)}\n\n{table(head, rows)}"


def positions():
    """What a position costs in training, on each setting."""
    found = {title: _rows(results(name)) for name, title in SETTINGS.items()}
    named = {
        "rotary": "`rotary`, against ours without",
        "alibi": "`alibi`, against ours without",
        "relative_bias": "`relative_bias`, against ours without",
        "shaw": "Shaw's embeddings, against Keras's layer without",
    }
    rows = [
        [title, *(figure(found[setting][f"{name}-{length}"]["ratio"]) for setting in found)]
        for name, words in named.items()
        for length, title in ((1024, f"{words}, T1024 (B1 D128 H8)"), (2048, "T2048 (B1 D256 H4)"))
    ]
    return table(["time of a training step", *found], rows)


def long():
    """Windows, memory and decoding, on each setting."""
    found = {title: _rows(results(name)) for name, title in SETTINGS.items()}
    named = {
        "window-training": ("window of 257 keys, T8192, time, ours / Keras's", "ratio"),
        "window-memory": ("window of 257 keys, T8192, memory, ours / Keras's", "ratio"),
        "window-growth": ("the window's time at T65536 / at T8192", "ratio"),
        "masked-memory": ("memory at T16384, padding, causal, dropout", "GB"),
        "longest-memory": ("memory at T32768", "GB"),
        "decoding-reading": ("a token over a cache of 8192 / reading the cache", "ratio"),
        "decoding": ("a token over a cache, one key head / eight", "ratio"),
    }

    def cell(row, kind):
        if row is None:
            return ""
        if kind == "GB":
            return figure(row["ours"]["GB"], " GB")
        return figure(row["ratio"])

    rows = [
        [title, *(cell(found[setting].get(name), kind) for setting in found)]
        for name, (title, kind) in named.items()
    ]
    return table(["", *found], rows)


def over_length():
    """Time and memory of a training step over the length, as in the plot."""
    report = results("attention_over_length")

    def side(found, kind):
        if not found or kind not in found:
            return ""
        return figure(found[kind], " GB") if kind == "GB" else f"{found['ms']:,.0f} ms"

    rows = [
        [
            f"{point['length']:,}",
            *(side(point.get(who), kind) for kind in ("ms", "GB") for who in ("ours", "other")),
        ]
        for point in report["series"]
    ]
    head = ["length", "time, ours", "time, Keras's", "memory, ours", "memory, Keras's"]
    return f"{surroundings(report)}\n\n{table(head, rows)}"


def eager():
    """Calls outside of compiled programs."""
    found = {title: results(f"eager_{name}")["rows"] for name, title in BACKENDS.items()}
    named = {
        "layer": "`MultiHeadAttention` / Keras's",
        "causal": "the same, causal",
        "block": "`TransformerBlock` / KerasHub's `TransformerEncoder`",
        "token": "a token with a cache / without, both ours",
    }
    rows = [
        [
            title,
            *(
                figure(found[backend][name]["ours"] / found[backend][name]["other"])
                for backend in found
            ),
        ]
        for name, title in named.items()
    ]
    return table(["time", *found], rows)


def gpu():
    """What was measured on a GPU, of each backend that was."""
    reports = [report for name in BACKENDS if (report := results(f"gpu_{name}"))]
    if not reports:
        return "Nothing was measured on a GPU yet.\n"
    return "\n".join(_gpu(report) for report in reports)


def _gpu(report):
    rows = []
    for row in report["rows"]:
        ours, other = row.get("ours") or {}, row.get("other") or {}
        times = (
            found["error"].replace("|", "/")[:60] if "error" in found else figure(found.get("ms"))
            for found in (ours, other)
        )
        rows.append([row["work"], row["against"], *times, figure(row["ratio"])])
    head = ["work", "against", "ours, ms", "other, ms", "ours / other"]
    checks = report.get("kernels", [])
    apart = sum(not check["agrees"] for check in checks)
    checked = f"{len(checks)} comparisons of kernels with `reference`, {apart} apart.\n\n"
    title = f"### {BACKENDS[report['backend']]} on a GPU\n\n"
    return f"{title}{surroundings(report)}\n\n{checked if checks else ''}{table(head, rows)}"


def models():
    """Whole models against KerasHub's and `transformers`'s."""
    report = results("models")
    named = {
        "gpt2-training": ("GPT-2, training step, B4 T128, dropout 0.1", "KerasHub"),
        "bert-training": ("BERT, training step, B4 T128, dropout 0.1", "KerasHub"),
        "gpt2-greedy": ("GPT-2, 64 tokens after 32, greedy", "KerasHub"),
        "gpt2-greedy-rows": ("the same of 8 prompts at once", "KerasHub"),
        "gpt2-static-cache": ("GPT-2, 64 tokens after 32", "`transformers`, static cache"),
    }
    rows = []
    for name, (work, against) in named.items():
        row = report["rows"][name]
        times = (f"{row[side] / 1000:.2f} s" for side in ("ours", "other"))
        rows.append([work, against, *times, figure(row["ours"] / row["other"])])
    head = ["work", "against", "ours", "other", "ours / other"]
    return f"{surroundings(report)}\n\n{table(head, rows)}"


def generation():
    """Whole translations and training steps against KerasHub's, on TensorFlow."""
    found = [results(name)["rows"] for name in ("generation", "generation_onednn_off")]
    named = {
        "greedy": ("64 tokens, greedy", "KerasHub, greedy"),
        "beams": ("64 tokens, four beams", "KerasHub, greedy"),
        "longer": ("512 tokens, greedy", "64 tokens, greedy, ours"),
        "training": ("a training step, 64 sentences, without XLA", "KerasHub"),
    }

    def cells(row):
        return [f"{row['ours'] / 1000:.2f} s / {row['other'] / 1000:.2f} s", figure(row["ratio"])]

    rows = [
        [work, against, *(cell for file in found for cell in cells(file[name]))]
        for name, (work, against) in named.items()
    ]
    head = [
        "ours",
        "other",
        "oneDNN on: times",
        "other / ours",
        "oneDNN off: times",
        "other / ours",
    ]
    return table(head, rows)


def llama_block():
    """Llama's block against KerasHub's on each setting, and against that of `transformers`."""
    files = {
        "TensorFlow": "tensorflow",
        "oneDNN off": "onednn_off",
        "JAX": "jax",
        "PyTorch": "torch",
    }
    found = {title: results(f"decoder_block_{name}")["rows"] for title, name in files.items()}
    works = {"forward": "forward", "training": "training step", "tokens": "64 tokens, caches"}

    def cell(setting, name):
        row = found[setting].get(name)
        return figure(row and row["ours"] / row["other"])

    rows = []
    for dtype in ("bfloat16", "float32"):
        for length in (512, 2048):
            for work, words in works.items():
                name = f"{dtype}-{length}-{work}"
                rows.append(
                    [
                        f"{dtype}, T{length}, {words}",
                        *(cell(setting, f"{name}-keras_hub") for setting in files),
                        cell("PyTorch", f"{name}-transformers"),
                        cell("PyTorch", f"{name}-transformers_compiled"),
                    ]
                )
    return table(["", *files, "`transformers`", "compiled"], rows)


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
    files = {
        "TensorFlow": "tensorflow",
        "oneDNN off": "onednn_off",
        "JAX": "jax",
        "PyTorch": "torch",
    }
    found = {title: results(f"linear_{name}") for title, name in files.items()}
    found = {title: report for title, report in found.items() if report}
    if not found:
        return "Not measured yet.\n"
    names = {name for x in found.values() for row in x["steps"].values() for name in row}

    def ratio(kind, row, column, other_row, other_column):
        def cell(report):
            times = report.get(kind, {})
            one = times.get(row, {}).get(column)
            other = times.get(other_row, {}).get(other_column)
            return one / other if one and other else None

        return [figure(cell(report)) for report in found.values()]

    softmax, all_pairs, rows = "MultiHeadAttention", "softmax of all pairs", []
    low_rank = {"LinformerAttention", "NystromAttention"}
    for name in sorted(names - {softmax, all_pairs}):
        for length in ("2048", "8192"):
            title = f"step, `{name}` / softmax, T{length}"
            other = all_pairs if name in low_rank else softmax
            rows.append([title, *ratio("steps", length, name, length, other)])
        title = f"step, `{name}`, T65536 / T8192"
        rows.append([title, *ratio("steps", "65536", name, "8192", name)])
        kept = ratio("steps_kept", "65536", name, "8192", name)
        if any(kept):
            rows.append([f"{title}, memory kept", *kept])
        if name in low_rank:
            title = f"memory of a step, `{name}` / softmax, T8192"
            rows.append([title, *ratio("memory", "8192", name, "8192", all_pairs)])
            continue
        title = f"token, `{name}`, after 100,000 / after 10"
        rows.append([title, *ratio("tokens", name, "100000", name, "10")])
    return table(["CPU time", *found], rows)


def choosing():
    """Mechanisms by task: accuracy, and time and memory of a step beside softmax's."""
    report = results("choosing")
    if report is None:
        return "Not measured yet.\n"
    tasks, softmax = report["tasks"], "softmax"
    costs = {**tasks, **report.get("times", {})}
    head = ["mechanism", *tasks, *(f"time, {task}" for task in tasks), "MiB, reviews"]
    head.append("weights, reviews")

    def mean(runs, name, value):
        found = [run[value] for run in runs.get(name, [])]
        return sum(found) / len(found) if found else None

    rows, names = [], {name: None for task in costs.values() for name in task}
    for name in names:
        accuracies = (mean(runs, name, "accuracy") for runs in tasks.values())
        row = [name, *("" if x is None else f"{x:.3f}" for x in accuracies)]
        for task in tasks:
            time, beside = (mean(costs[task], one, "cpu_ms") for one in (name, softmax))
            row.append(figure(time / beside if time and beside else None))
        row.append(figure(mean(costs["reviews"], name, "mib")))
        weights = mean(costs["reviews"], name, "weights")
        rows.append([*row, "" if weights is None else f"{weights / 1000:,.0f} K"])
    return table(head, rows)


def movie_reviews():
    """Test accuracies of the models of movie reviews, over the seeds that were measured."""
    rows = []
    for name, runs in results("imdb_accuracy")["rows"].items():
        found = [run["test_accuracy"] for run in runs]
        seeds = ", ".join(str(run["seed"]) for run in runs)
        mean = f"**{sum(found) / len(found):.4f}**"
        rows.append([f"`{name}`", seeds, str(runs[0]["epochs"]), mean])
        rows[-1].append(", ".join(f"{accuracy:.4f}" for accuracy in found))
    return table(["model", "seeds", "epochs", "mean", "each"], rows)


TABLES = {
    "linear": linear,
    "summary": summary,
    **{SETTINGS[name].lower(): lambda name=name: attention(name) for name in SETTINGS},
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
