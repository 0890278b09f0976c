"""`plot_attention` and `overlay_attention`: weights as a matplotlib figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_attention.core.hints import Tensor, Tensors
from keras_attention.sequences import shapes
from keras_attention.visualization import labels

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Inches per position with a readable word, and without.
READABLE, SMALL = 0.17, 0.13
# The size limits of a panel, in inches, and the largest sum of panels side by side.
SMALLEST, LARGEST, ALL = 1.4, 8.0, 16.0
# Inches of a series above a panel.
SERIES = 0.7
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
    *,
    figsize: tuple[float, float] | None = None,
    vmax: float | None = None,
    series: Tensor | None = None,
) -> Figure:
    """Draws weights: a row per query, a column per key, dark for large weights.

    One head is one heat map, the heads of a layer are a grid, and several layers are a row each.
    The heads of a layer share a scale, from 0 to what the largest weights of three in four queries
    do not exceed: so the first queries of a causal layer, which see few keys, do not leave the
    others pale. Larger weights have the last color.

    Args:
        scores, query_tokens, key_tokens: as in `attention_html`.
        title: of the figure.
        cmap: a matplotlib color map. For numbers with signs, "RdBu" replaces the default.
        figsize: width and height of the figure in inches; by default as large as its words need.
        vmax: the end of the scale of all layers.
        series: (S,) or (S, F), drawn over the keys, above each column of panels.

    Returns:
        A `matplotlib.figure.Figure`: `figure.savefig("attention.png")`; a notebook shows it.
        `matplotlib.pyplot` is not used. Words are shown literally: `$` starts no
        formula, and invisible characters are marked. If there is no room for all words, some are
        shown, and without words numbers, at round intervals. Fonts are the installed ones;
        matplotlib warns about missing letters.

    Raises:
        ValueError, TypeError: `scores` do not have that shape, the number of words or the length of
            the series differs, or `vmax` is not positive.
        ImportError: matplotlib is not installed.

    >>> import numpy as np
    >>> from keras_attention.visualization import plot_attention
    >>> scores = np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.0, 1.0]]])  # two heads
    >>> figure = plot_attention(scores, ["hello", "world"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['head 1', 'head 2']
    """
    layers = labels.read(scores, query_tokens, key_tokens)
    shapes.check_optional_positive("vmax", vmax)
    rows = _rows(layers)
    if series is not None:
        series = labels.array(series, "", "series")
        for layer in layers:
            shapes.check_same("Lengths", keys=layer.weights.shape[2], series=len(series))
    columns = max(len(row) for row in rows)
    unit = READABLE if len(rows) == columns == 1 else SMALL
    heights = [_inches(row, 1, unit) for row in rows]
    widths = [_inches([x[n] for x in rows if n < len(x)], 2, unit) for n in range(columns)]
    smaller = min(1, ALL / sum(widths), ALL / sum(heights))
    heights, widths = ([smaller * size for size in sizes] for sizes in (heights, widths))
    above = 0 if series is None else 1
    tokens = [word for layer in layers for word in [*(layer.queries or ()), *(layer.keys or ())]]
    title = _short(labels.visible(str(title)), LONGEST_HEADING) if title else None
    figure_class = _figure_class("plot_attention")
    family = _families([*tokens, *(layer.name for layer in layers), title or ""])
    text = {"parse_math": False, "usetex": False, "fontfamily": family}

    width = sum(widths) + BETWEEN * columns + AROUND + _beside(layers, "queries")
    height = sum(heights) + len(rows) * (BETWEEN + _beside(layers, "keys")) + AROUND / 2
    figure = figure_class(figsize or (width, height + above * SERIES), layout="constrained")
    panels = figure.subplots(
        above + len(rows),
        columns,
        squeeze=False,
        width_ratios=widths,
        height_ratios=[SERIES] * above + heights,
    )
    lines, panels = panels[:above], panels[above:]
    ends = {id(layer): vmax or _end(layer.weights) for layer in layers}
    signed = any(layer.weights.min() < 0 for layer in layers)
    cmap = "RdBu" if signed and cmap == "Blues" else cmap
    for n, (axes, row, height) in enumerate(zip(panels, rows, heights, strict=True)):
        for column, (layer, head) in enumerate(row):
            end = ends[id(layer)]
            scale = {"vmin": -end if signed else 0, "vmax": end, "cmap": cmap}
            image = axes[column].imshow(layer.weights[head], aspect="auto", **scale)
            heading = [layer.name] if layer.name and len(layers) > 1 else []
            heading += [f"head {head + 1}"] if len(layer.weights) > 1 else []
            axes[column].set_title(_short(", ".join(heading), LONGEST_HEADING), fontsize=9, **text)
            _, queries, keys = layer.weights.shape
            words = layer.queries if column == 0 else []
            _label(axes[column].yaxis, words, queries, height, text)
            turned = {} if layer.keys is None else {"rotation": 90}
            _label(axes[column].xaxis, layer.keys, keys, widths[column], text, **turned)
            axes[column].tick_params(length=2, pad=2)
        for unused in axes[len(row) :]:
            unused.set_axis_off()
        axes[0].set_ylabel("query")
        if len(layers) > 1 or n == len(rows) - 1:
            beside = axes if len(layers) > 1 else panels
            beyond = np.abs(layer.weights).max() > end
            extend = "neither" if not beyond else "both" if signed else "max"
            shrink = min(1, 4 / (height if len(layers) > 1 else sum(heights)))
            figure.colorbar(image, ax=beside, label="weight", shrink=shrink, extend=extend)
    for row in lines:
        for axes, panel in zip(row, panels[0], strict=True):
            if panel.axison:
                axes.plot(series, linewidth=1)
                axes.set_xlim(panel.get_xlim())
            axes.set_axis_off()
    for column in range(columns):
        lowest = max(number for number, row in enumerate(rows) if len(row) > column)
        panels[lowest][column].set_xlabel("key")
    if title:
        figure.suptitle(title, **text)
    return figure


def overlay_attention(
    images: Tensor,
    weights: Tensor,
    titles: Sequence[str] | None = None,
    cmap: str | Colormap = "magma",
) -> Figure:
    """Draws images, and below each the weights of its patches over it.

    Args:
        images: (N, height, width), or with an axis of 1 or 3 channels after it.
        weights: (N, rows, columns), one for each patch, such as those of a pooling or of a class
            token, reshaped to the grid of patches.
        titles: N of them.
        cmap: a matplotlib color map, of the weights.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError, TypeError: the arrays do not have such shapes, or the numbers of rows differ.
        ImportError: matplotlib is not installed.

    >>> import numpy as np
    >>> from keras_attention.visualization import overlay_attention
    >>> images, weights = np.random.rand(2, 32, 32, 3), np.random.rand(2, 4, 4)
    >>> len(overlay_attention(images, weights, ["cat", "dog"]).axes)
    4
    """
    pictures, weights = labels.array(images, "", "images"), labels.array(weights, "", "weights")
    colors = pictures.shape[3:]
    if weights.ndim != 3 or pictures.ndim not in (3, 4) or colors not in ((), (1,), (3,)):
        raise ValueError(
            "`images` must be (N, height, width), with 1 or 3 channels after it or none, and "
            "`weights` (N, rows, columns). Received: "
            f"images.shape={pictures.shape}, weights.shape={weights.shape}"
        )
    titles = [""] * len(pictures) if titles is None else list(map(str, titles))
    sizes = {"images": len(pictures), "weights": len(weights), "titles": len(titles)}
    shapes.check_same("Numbers", **sizes)
    lowest, highest = pictures.min(initial=0), pictures.max(initial=0)
    pictures = (pictures - lowest) / max(highest - lowest, 1e-9)
    width = max(1.6 * len(pictures), SMALLEST)
    figure = _figure_class("overlay_attention")(figsize=(width, 3.4), layout="constrained")
    rows = figure.subplots(2, max(1, len(pictures)), squeeze=False)
    height, width = pictures.shape[1:3]
    for n, title in enumerate(titles):
        for axes in rows[:, n]:
            axes.imshow(pictures[n].squeeze(), cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
        over = {"extent": (-0.5, width - 0.5, height - 0.5, -0.5), "alpha": 0.6}
        rows[1, n].imshow(weights[n], cmap=cmap, interpolation="bilinear", **over)
        rows[0, n].set_title(title, parse_math=False, usetex=False)
    return figure


def _figure_class(function):
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"`{function}` draws with matplotlib, which is not installed: `pip install matplotlib`"
        ) from error
    return Figure


def _end(weights):
    """The end of a scale, which the largest weights of three in four queries do not exceed."""
    largest = np.abs(weights).max(axis=-1)
    seen = largest[largest > 0]
    # One of them, and none between two.
    return float(np.quantile(seen, 0.75, method="higher")) if seen.size else 1.0


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


def _label(axis, tokens, count, inches, text, **options):
    """Words at an axis, or numbers without any; at round intervals if not all can be read."""
    pitch, step = 72 * inches / count, 1
    numbers = tokens is None
    shown = range(0) if tokens == [] or (numbers and count == 1) else range(count)
    if shown:
        readable = (18 if numbers else 6.5) / pitch
        steps = (n * 10**power for power in range(7) for n in (1, 2, 5))
        step = next(step for step in steps if step >= readable)
        shown = shown[::step]
    words = [_short(str(n) if numbers else tokens[n], LONGEST_WORD) for n in shown]
    size = min(8 if numbers else 9, 0.8 * step * pitch)
    axis.set_ticks(list(shown), words, fontsize=size, **text, **options)


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
