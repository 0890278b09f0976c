"""Draws results as bars: `python docs/pictures/benchmarks.py` writes the pictures here.

The results are those of benchmarks/results/attention.json and additive_memory.json.
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


def times():
    """Our time by Keras's of every row that was measured against Keras's layer."""
    found = json.loads((RESULTS / "attention.json").read_text(encoding="utf-8"))["rows"]
    rows = [
        (row["work"], row["ratio"], _written(row["ratio"]), STEP if "XLA" in row["work"] else SLOT)
        for row in found
        if row["figure"] == "time" and "keras.layers" in row["against"]
    ]
    return bars("Time of ours by that of Keras's layer, shorter is better", rows, mark=1)


def _written(ratio):
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def additive_memory():
    """Growth of memory of additive scores in training, with and without all hidden units."""
    found = json.loads((RESULTS / "additive_memory.json").read_text(encoding="utf-8"))
    rows = []
    for backend, measured in found.items():
        for figure in measured["figures"]:
            if figure["step"] == "training":
                words = f"{backend}, {figure['mode']}, B{figure['B']} T{figure['T']} u{figure['U']}"
                for name, color in (("ours", SLOT), ("written_down", LINE)):
                    size = figure[name]["megabytes"]
                    whose = "" if name == "ours" else ", all units at once"
                    rows.append((words + whose, size, f"{size:.0f} MB", color))
    return bars("Memory of additive scores in training, shorter is better", rows)


def main():
    """Writes both pictures beside this file."""
    for name, draw in (("times", times), ("additive_memory", additive_memory)):
        (HERE / f"benchmarks_{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
