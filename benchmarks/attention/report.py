"""Figures as text, as a plot, and with what they were measured on."""

import datetime
import os
import pathlib
import platform
import re

import keras
import numpy as np

import keras_attention
from benchmarks.attention.backends import BACKEND, gpu
from keras_attention.backend import backend

COLUMNS = (
    "row",
    "work",
    "ours",
    "other",
    "ratio",
    "bar",
    "aim",
    "reached",
    "GFLOP",
    "limit ms",
    "ours / limit",
)


def header():
    return f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


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

    def number(value, unit=""):
        return "" if value is None else f"{value:.3g}{unit}"

    unit = " GB" if result["judged"] == "GB" else ""
    cells = [
        result["name"],
        result["work"],
        side("ours"),
        side("other"),
        number(result["ratio"]),
        number(result["bar"], unit),
        number(result["aim"], unit),
        result["reached"] or "",
        number(result["gflop"]),
        number(result["limit_ms"]),
        number(result["over_limit"]),
    ]
    return f"| {' | '.join(cells)} |"


OPTIONS = ("small", "repeats", "seconds")
SETTINGS = ("TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")


def surroundings(options):
    """Versions and the machine."""
    found = gpu()
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))
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
            "processor": processor("model name") or platform.processor(),
            "vector extensions": vector_extensions(),
            "device": found[0] if found else "CPU",
        },
        # TensorFlow's default depends on the CPU.
        "onednn": backend.prefers_whole_rows(None) if BACKEND == "tensorflow" else None,
        # What changes the speed of TensorFlow's products; unset is its own choice.
        "environment": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        # Of programs that measure in turns.
        **{name: found for name, found in vars(options).items() if name in OPTIONS},
    }


def processor(field):
    """A line about the CPU, if the system has one, or an empty line."""
    path = pathlib.Path("/proc/cpuinfo")
    found = re.search(rf"{field}\s*:\s*(.*)", path.read_text()) if path.exists() else None
    return found[1] if found else ""


def vector_extensions():
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
    return [name for name in wanted if name in processor("flags").split()]


def preamble(report):
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machine = report["machine"]
    text = (
        f"{report['date']}, {report['backend']}: {versions}. {machine['device']}; "
        f"{machine['cores']} cores, {machine['architecture']}, {machine['processor']}, "
        f"{' '.join(machine['vector extensions']) or 'vector extensions unknown'}."
    )
    if report["onednn"] is not None:
        text += f" oneDNN is {'on' if report['onednn'] else 'off'}."
    text += "".join(f" {name}={value}." for name, value in report["environment"].items())
    return text + (" Small sizes: these figures mean nothing." if report["small"] else "")


def saved_by_a_block(results):
    """What each block of a model saves, beside what the layer alone does: lines of Markdown."""

    def saved(result):
        sides = [result.get(who, {}).get("ms") for who in ("ours", "other")]
        return None if None in sides else sides[1] - sides[0]

    named = {result["name"]: result for result in results}
    for name, result in named.items():
        alone = named.get(name.replace("-model", "-training"))
        if "-model" in name and alone and None not in (saved(result), saved(alone)):
            yield (
                f"- {name}: {saved(result) / 2:.3g} ms less a block than Keras's; "
                f"the layer alone, {saved(alone):.3g} ms less."
            )


def plot(report, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = report["series"]
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for panel, key, label in zip(panels, ("ms", "GB"), ("milliseconds", "GB"), strict=True):
        for who, name in (("ours", "keras_attention"), ("other", "keras.layers")):
            shown = [(p["length"], p[who][key]) for p in points if key in p.get(who, {})]
            if shown:
                panel.plot(*zip(*shown, strict=True), "o-", label=name)
        if key == "ms":
            limit = [(p["length"], p["limit_ms"]) for p in points]
            panel.plot(*zip(*limit, strict=True), "k--", label="matrix products alone")
        panel.set(xscale="log", yscale="log", xlabel="T", ylabel=label)
        panel.set_xticks([p["length"] for p in points], [str(p["length"]) for p in points])
        panel.minorticks_off()
        panel.legend()
    small = " (small: means nothing)" if report["small"] else ""
    figure.suptitle(
        "Training step, padding mask, causal, dropout 0.1, D256 H4, "
        f"{report['backend']}, {report['machine']['device']}{small}"
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
