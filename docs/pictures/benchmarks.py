"""Draws the results of benchmarks/results/attention*.json: `python docs/pictures/benchmarks.py`."""

import json
import pathlib

from pipeline import LINE, NOTE, SLOT, STEP, svg

HERE = pathlib.Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
FONT = "font-family='system-ui, sans-serif' font-size='13'"
LABELS, WIDTH, ROW = 380, 430, 24


def label(x, y, words, anchor="start"):
    """A line of gray text."""
    words = words.replace("&", "&amp;")
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}' {FONT} fill='{NOTE}'>{words}</text>"


SETTINGS = {
    "attention": ("TensorFlow, oneDNN on", STEP),
    "attention_onednn_off": ("TensorFlow, oneDNN off", SLOT),
    "attention_jax": ("JAX", "#3d8b5f"),
    "attention_torch": ("PyTorch", "#8657a8"),
}
TASKS = ("forward", "training", "padding", "causal", "dropout", "all-three", "bias", "model")
FARTHEST = 1.25


def _work(row):
    return row["work"].replace("training step, padding mask, causal,", "padding, causal,")


def settings():
    """Our time by that of Keras's layer: a dot for each setting, a line for each task."""
    found = {}
    for name in SETTINGS:
        rows = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        found[name] = {row["name"]: row for row in rows}
    names = [f"{length}-{task}" for length in ("short", "medium", "long") for task in TASKS]
    bottom = 40 + ROW * len(names)
    parts = []
    for number, (words, color) in enumerate(SETTINGS.values()):
        x = 30 + 200 * number
        parts.append(f"<circle cx='{x}' cy='14' r='6' fill='{color}'/>")
        parts.append(label(x + 12, 19, words))
    for mark in (0.25, 0.5, 0.75, 1):
        x = LABELS + WIDTH * mark / FARTHEST
        dashes = " stroke-dasharray='4 3'" if mark == 1 else " stroke-opacity='0.3'"
        parts.append(f"<path d='M{x:.1f} 34V{bottom}' stroke='{LINE}'{dashes}/>")
        parts.append(label(x, bottom + 16, f"{mark:g}", "middle"))
    for number, name in enumerate(names):
        y = 48 + ROW * number
        parts.append(label(LABELS - 8, y + 4, _work(found["attention"][name]), "end"))
        for setting, (_, color) in SETTINGS.items():
            x = LABELS + WIDTH * found[setting][name]["ratio"] / FARTHEST
            parts.append(f"<circle cx='{x:.1f}' cy='{y}' r='6' fill='{color}' fill-opacity='0.8'/>")
    title = "Time of ours by that of Keras's layer, on four settings; further left is faster"
    return svg(LABELS + WIDTH + 20, bottom + 24, title, *parts)


def main():
    """Writes the picture beside this file."""
    (HERE / "benchmarks_settings.svg").write_text(settings(), encoding="utf-8")


if __name__ == "__main__":
    main()
