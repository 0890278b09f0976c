"""`plot_attention`: weights as a matplotlib figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from keras_attention.core.hints import Tensors
from keras_attention.visualization import labels

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Inches per position with a readable word, and without.
READABLE, SMALL = 0.17, 0.13
# The size limits of a panel, in inches.
SMALLEST, LARGEST = 1.4, 14.0
LONGEST_WORD = 24
LONGEST_HEADING = 100
COLUMNS = 4
# Inches per letter beside a panel, between panels, and around all.
LETTER, BETWEEN, AROUND = 0.065, 0.4, 1.4


def plot_attention(
    scores: Tensors,
    query_tokens: labels.Tokens | None = None,
    key_tokens: labels.Tokens | None = None,
    title: str | None = None,
    cmap: str | Colormap = "Blues",
) -> Figure:
    """Draws weights: a row per query, a column per key, dark for large weights.

    One head is one heat map, the heads of a layer are a grid, and several layers are a row each.
    All share one scale, from 0 to the largest weight.

    Args:
        scores, query_tokens, key_tokens: as in `attention_html`.
        title: of the figure.
        cmap: a matplotlib color map.

    Returns:
        A `matplotlib.figure.Figure`: `figure.savefig("attention.png")`; a notebook shows it.
        `matplotlib.pyplot` is not used. Words are shown literally: `$` starts no
        formula, and invisible characters are marked. If there is no room for all words, only some
        are shown. Fonts are the installed ones; matplotlib warns about missing letters.

    Raises:
        ValueError, TypeError: `scores` do not have that shape, or the number of words differs.
        ImportError: matplotlib is not installed.

    >>> import numpy as np
    >>> from keras_attention.visualization import plot_attention
    >>> scores = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.0, 1.0]]])  # two heads
    >>> figure = plot_attention(scores, ["hello", "world"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['head 1', 'head 2']
    """
    layers = labels.read(scores, query_tokens, key_tokens)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "`plot_attention` draws with matplotlib, which is not installed: "
            '`pip install matplotlib`, or `pip install "keras_attention[visualization]"`'
        ) from error
    rows = _rows(layers)
    columns = max(len(row) for row in rows)
    unit = READABLE if len(rows) == columns == 1 else SMALL
    heights = [_inches(row, 1, unit) for row in rows]
    widths = [_inches([x[n] for x in rows if n < len(x)], 2, unit) for n in range(columns)]
    tokens = [word for layer in layers for word in [*(layer.queries or ()), *(layer.keys or ())]]
    title = _short(labels.visible(str(title)), LONGEST_HEADING) if title else None
    family = _families([*tokens, *(layer.name for layer in layers), title or ""])
    text = {"parse_math": False, "usetex": False, "fontfamily": family}

    width = sum(widths) + BETWEEN * columns + AROUND + _beside(layers, "queries")
    height = sum(heights) + len(rows) * (BETWEEN + _beside(layers, "keys")) + AROUND / 2
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(
        len(rows), columns, squeeze=False, width_ratios=widths, height_ratios=heights
    )
    largest = max(float(layer.weights.max()) for layer in layers) or 1.0
    for axes, row, height in zip(panels, rows, heights, strict=True):
        for column, (layer, head) in enumerate(row):
            image = axes[column].imshow(
                layer.weights[head], vmin=0, vmax=largest, cmap=cmap, aspect="auto"
            )
            heading = [layer.name] if layer.name and len(layers) > 1 else []
            heading += [f"head {head + 1}"] if len(layer.weights) > 1 else []
            axes[column].set_title(_short(", ".join(heading), LONGEST_HEADING), fontsize=9, **text)
            _label(axes[column].yaxis, layer.queries if column == 0 else None, height, text)
            _label(axes[column].xaxis, layer.keys, widths[column], text, rotation=90)
            axes[column].tick_params(length=2, pad=2)
        for unused in axes[len(row) :]:
            unused.set_axis_off()
        axes[0].set_ylabel("query")
    for column in range(columns):
        lowest = max(number for number, row in enumerate(rows) if len(row) > column)
        panels[lowest][column].set_xlabel("key")
    figure.colorbar(image, ax=panels, label="weight", shrink=min(1, 4 / sum(heights)))
    if title:
        figure.suptitle(title, **text)
    return figure


def _rows(layers):
    """Pairs of a layer and a head, in rows: the layers, or the heads of a single one."""
    if len(layers) > 1:
        return [[(layer, head) for head in range(len(layer.weights))] for layer in layers]
    heads = [(layers[0], head) for head in range(len(layers[0].weights))]
    # As even as possible.
    columns = math.ceil(len(heads) / math.ceil(len(heads) / COLUMNS))
    return [heads[start : start + columns] for start in range(0, len(heads), columns)]


def _inches(panels, axis, unit):
    count = max(layer.weights.shape[axis] for layer, _ in panels)
    return min(max(count * unit, SMALLEST), LARGEST)


def _beside(layers, side):
    """Inches of the words on one side of a panel."""
    lengths = [len(word) for layer in layers for word in getattr(layer, side) or ()]
    return LETTER * min(max(lengths, default=0), LONGEST_WORD)


def _short(word, letters):
    return word if len(word) <= letters else word[: letters - 1] + "…"


def _label(axis, tokens, inches, text, **options):
    """Words at an axis, only some if all would not be readable."""
    if tokens is None:
        axis.set_ticks([])
        return
    pitch = 72 * inches / len(tokens)
    step = math.ceil(6.5 / pitch)
    shown = [_short(word, LONGEST_WORD) for word in tokens[::step]]
    size = min(9, 0.8 * step * pitch)
    axis.set_ticks(range(0, len(tokens), step), shown, fontsize=size, **text, **options)


def _families(words):
    """Names of fonts, first that of the user's settings, then those that cover missing letters."""
    from matplotlib import font_manager, rcParams
    from matplotlib.ft2font import FT2Font

    def letters(path):
        try:
            return set(FT2Font(path).get_charmap())
        except (OSError, RuntimeError):
            return set()

    wanted = list(rcParams["font.family"])
    first = font_manager.findfont(font_manager.FontProperties(family=wanted))
    missing = {ord(letter) for word in words for letter in word} - letters(first)
    plain = (400, "normal", "regular", "book")
    # Noto has a font for each script.
    fonts = sorted(font_manager.fontManager.ttflist, key=lambda font: "Noto Sans" not in font.name)
    for font in fonts:
        if not missing:
            break
        if font.style != "normal" or "Last Resort" in font.name or font.weight not in plain:
            continue
        if found := missing & letters(font.fname):
            wanted.append(font.name)
            missing -= found
    return wanted
