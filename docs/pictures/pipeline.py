"""Draws the architecture: `python docs/pictures/pipeline.py` writes pipeline.svg and layers.svg."""

import pathlib

HERE = pathlib.Path(__file__).parent
# Colors that can be read on a white page and on a dark one; text is on color, or gray.
STEP, SLOT, LINE, NOTE = "#2f5d8c", "#b3541e", "#8a8f98", "#8a8f98"
FONT = "font-family='system-ui, sans-serif'"


def box(x, y, width, height, color, *lines):
    """A rectangle with lines of white text, the first of them bold."""
    parts = [f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{color}'/>"]
    first = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
    for number, line in enumerate(lines):
        weight = "bold" if number == 0 else "normal"
        parts.append(text(x + width / 2, first + 17 * number, line, "#ffffff", weight))
    return "".join(parts)


def text(x, y, line, color=NOTE, weight="normal", size=14):
    """A line of text, centered."""
    style = f"text-anchor='middle' font-weight='{weight}' font-size='{size}' {FONT}"
    return f"<text x='{x}' y='{y}' {style} fill='{color}'>{line}</text>"


def arrow(*points):
    """A line through points, with a head at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    style = f"fill='none' stroke='{LINE}' stroke-width='2' marker-end='url(#head)'"
    return f"<polyline points='{path}' {style}/>"


def svg(width, height, title, *parts):
    """A picture with a transparent ground."""
    head = (
        "<defs><marker id='head' markerWidth='8' markerHeight='8' refX='6' refY='3' orient='auto'>"
        f"<path d='M0 0L7 3L0 6z' fill='{LINE}'/></marker></defs>"
    )
    size = f"viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img'"
    parts = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size}>\n"
        f"<title>{title}</title>\n{head}\n{parts}\n</svg>\n"
    )


def pipeline():
    """Steps from left to right; the slots that fill them are above, the kernels below."""
    steps = ["project", "score", "mask", "normalize", "combine", "project"]
    shapes = ["(B, T, H, K)", "(B, H, T, S)", "", "", "(B, T, H, V)", "(B, T, D)"]
    width, step = 118, 146
    parts = []
    for number, (name, shape) in enumerate(zip(steps, shapes, strict=True)):
        x = 12 + step * number
        parts.append(box(x, 120, width, 48, STEP, name))
        if shape:
            parts.append(text(x + width / 2, 190, shape, size=12))
        if number:
            parts.append(arrow((x - step + width, 144), (x - 3, 144)))
    slots = [
        (158, 48, ("score",)), (208, 74, ("position",)), (304, 118, ("pattern", "∧ padding")),
        (450, 118, ("normalization",)),
    ]  # fmt: skip
    for x, w, lines in slots:
        parts.append(box(x, 44, w, 44, SLOT, *lines))
        parts.append(arrow((x + w / 2, 88), (x + w / 2, 117)))
    parts.append(box(596, 44, 118, 44, SLOT, "scores_", "regularizer"))
    parts.append(arrow((568, 66), (593, 66)))
    parts.append(text(433, 26, "slots: a string, an object, or a custom object"))
    bracket = "M158 204v12h556v-12"
    parts.append(f"<path d='{bracket}' fill='none' stroke='{LINE}' stroke-width='2'/>")
    parts.append(text(436, 238, "one kernel: few_scores, fused, single_query, blockwise, banded …"))
    return svg(878, 250, "project, score and position, mask, normalize, combine, project", *parts)


def layers():
    """Which part of the package imports which: downwards only."""
    rows = [
        (("visualization, convert", "pictures, other packages"),),
        (("models", "stacks of blocks, with embeddings and logits"),),
        (("generation", "tokens from any step"),),
        (("layers", "Attention and its presets"), ("ops", "the same, of arrays")),
        (("scores", ""), ("normalizations", ""), ("patterns", ""), ("positions", ""),
         ("regularizers", ""), ("activations, losses, schedules", "")),
        (("kernels", "a spec and heads in, a result out; no weights"), ("inputs", "")),
        (("backend", "what keras.ops lacks, a file each"), ("spec", ""), ("saving", "")),
        (("masks", ""), ("shapes", ""), ("keras_private", "")),
    ]  # fmt: skip
    colors = [STEP, STEP, STEP, STEP, SLOT, STEP, STEP, STEP]
    parts, total, gap = [], 854, 10
    for number, (row, color) in enumerate(zip(rows, colors, strict=True)):
        y = 12 + 78 * number
        weights = [max(len(name) + 4, len(note)) for name, note in row]
        x = 12
        for (name, note), weight in zip(row, weights, strict=True):
            width = (total - gap * (len(row) - 1)) * weight // sum(weights)
            parts.append(box(x, y, width, 50, color, *filter(None, (name, note))))
            x += width + gap
        if number:
            parts.append(arrow((439, y - 27), (439, y - 3)))
    return svg(
        878,
        622,
        "convert, models, generation, layers, slots, kernels, backend, masks: imports go down",
        *parts,
    )


def main():
    """Writes both pictures beside this file."""
    (HERE / "pipeline.svg").write_text(pipeline(), encoding="utf-8")
    (HERE / "layers.svg").write_text(layers(), encoding="utf-8")


if __name__ == "__main__":
    main()
