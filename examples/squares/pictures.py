"""Pictures of predicted corners, and of what the decoder attended to."""

import numpy as np
from matplotlib.figure import Figure

COLORS = {"without_attention": "tab:orange", "with_attention": "tab:blue"}
SHOWN = 8
EXAMPLES = 3


def draw_squares(path, corners, predicted):
    """The first few squares: given corners, true ones, and what each model says.

    Args:
        path: the file to write.
        corners: squares (N, 4, 2).
        predicted: last corners (N, 2, 2) of each model, by its name.
    """
    figure = Figure(figsize=(11, 6), layout="constrained")
    for index, axes in enumerate(figure.subplots(2, SHOWN // 2).ravel()):
        axes.set(xlim=(-1.9, 1.9), ylim=(-1.9, 1.9), aspect="equal", xticks=[], yticks=[])
        if index >= len(corners):
            continue
        square = corners[index]
        axes.plot(*square[[0, 1, 2, 3, 0]].T, color="0.85", zorder=0)
        axes.scatter(*square[:2].T, color="0.2", label="given")
        for number, corner in enumerate(square, start=1):
            axes.annotate(str(number), corner, textcoords="offset points", xytext=(6, 6))
        axes.scatter(*square[2:].T, facecolors="none", edgecolors="0.2", s=70, label="true")
        for kind, points in predicted.items():
            label = kind.replace("_", " ")
            axes.scatter(*points[index].T, marker="x", color=COLORS[kind], label=label)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=100, format="png")


def draw_alignments(path, alignments):
    """Weights of the given corners for each predicted one: the mean, and a few squares' own.

    Args:
        path: the file to write.
        alignments: (N, 2, 2), for predicted and given corners.
    """
    shown = {"mean of all squares": alignments.mean(axis=0)}
    for index in range(min(EXAMPLES, len(alignments))):
        shown[f"square {index + 1}"] = alignments[index]
    figure = Figure(figsize=(2.8 * len(shown), 3.2), layout="constrained")
    for axes, (title, weights) in zip(
        np.atleast_1d(figure.subplots(1, len(shown))), shown.items(), strict=True
    ):
        image = axes.imshow(weights, vmin=0, vmax=1, cmap="Blues")
        for (row, column), weight in np.ndenumerate(weights):
            color = "white" if weight > 0.6 else "black"
            axes.text(column, row, f"{weight:.2f}", ha="center", va="center", color=color)
        axes.set(title=title, xlabel="corner that was given", xticks=(0, 1), xticklabels=(1, 2))
        axes.set(yticks=(0, 1), yticklabels=(3, 4))
    figure.axes[0].set_ylabel("corner to say")
    figure.colorbar(image, ax=figure.axes, label="weight")
    figure.savefig(path, dpi=100, format="png")
