"""Draws results as bars: `python docs/pictures/benchmarks.py` writes the pictures here.

The results are those of benchmarks/results: attention*.json and additive_memory.json.
"""

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


def bars(title, rows, mark=None):
    """Bars with their labels: `rows` of (label, figure, written figure, color)."""
    largest = max(max(figure for _, figure, _, _ in rows), mark or 0)
    parts, height = [], 16 + ROW * len(rows)
    for number, (words, figure, written, color) in enumerate(rows):
        y = 12 + ROW * number
        width = max(WIDTH * figure / largest, 1)
        parts.append(label(LABELS - 8, y + 13, words, "end"))
        parts.append(
            f"<rect x='{LABELS}' y='{y}' width='{width:.1f}' height='17' rx='2' fill='{color}'/>"
        )
        parts.append(label(LABELS + width + 6, y + 13, written))
    if mark:
        x = LABELS + WIDTH * mark / largest
        parts.append(f"<path d='M{x:.1f} 6V{height - 6}' stroke='{LINE}' stroke-dasharray='4 3'/>")
    return svg(LABELS + WIDTH + 60, height, title, *parts)


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


def additive_memory():
    """Growth of memory of additive scores in training, with and without all hidden units."""
    found = json.loads((RESULTS / "additive_memory.json").read_text(encoding="utf-8"))
    rows = []
    for figure in found["rows"]:
        if figure["step"] == "training":
            where = f"{figure['backend']}, {figure['mode']}"
            words = f"{where}, B{figure['B']} T{figure['T']} u{figure['U']}"
            for name, color in (("ours", SLOT), ("written_down", LINE)):
                size = figure[name]["megabytes"]
                whose = "" if name == "ours" else ", all units at once"
                rows.append((words + whose, size, f"{size:.0f} MB", color))
    return bars("Memory of additive scores in training, shorter is better", rows)


def main():
    """Writes both pictures beside this file."""
    for name, draw in (("settings", settings), ("additive_memory", additive_memory)):
        (HERE / f"benchmarks_{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
