"""Draws docs/pictures/scores_*.png: `python docs/pictures/scores.py`.

Each picture shows the score of a two-dimensional key, wherever it is, for one query (the arrow).
Weights are drawn at random, with a fixed seed.
"""

import pathlib

import keras
import matplotlib.pyplot as plt
import numpy as np

from keras_attention import scores

FOLDER = pathlib.Path(__file__).parent
QUERY = np.array([1.0, 0.6], "float32")
REACH, STEPS = 2.0, 81

DRAWN = {
    "dot": scores.Dot(),
    "scaled_dot": scores.ScaledDot(),
    "cosine": scores.Cosine(),
    "general": scores.General(),
    "reduced_rank": scores.ReducedRank(1),
    "additive": scores.Additive(6),
    "concat": scores.Concat(6),
    "key_only": scores.KeyOnly(6),
}


def filled(score, query, key):
    """The score, built, with weights that show its shape."""
    score.build(query.shape, key.shape)
    rng = np.random.default_rng(4)
    score.set_weights([1.2 * rng.normal(size=weight.shape) for weight in score.weights])
    return score


def draw(name, score):
    """A map of the score over the plane of keys."""
    line = np.linspace(-REACH, REACH, STEPS, dtype="float32")
    across, up = np.meshgrid(line, line)
    key = np.stack([across, up], axis=-1).reshape(1, -1, 1, 2)
    query = QUERY.reshape(1, 1, 1, 2)
    table = keras.ops.convert_to_numpy(filled(score, query, key)(query, key))
    table = table.reshape(STEPS, STEPS)
    largest = np.abs(table).max()
    figure, axes = plt.subplots(figsize=(3.2, 2.6), layout="constrained")
    filling = axes.contourf(across, up, table, 21, cmap="RdBu_r", vmin=-largest, vmax=largest)
    axes.contour(across, up, table, 10, colors="black", linewidths=0.3)
    if name != "key_only":
        arrow = {"arrowstyle": "->", "linewidth": 2}
        axes.annotate("", xy=QUERY, xytext=(0, 0), arrowprops=arrow)
    axes.set(xlabel="key, feature 0", ylabel="key, feature 1", aspect="equal")
    figure.colorbar(filling, label="score", shrink=0.9)
    _save(figure, name)


def draw_location():
    """A map of the score over positions, for a query that moves."""
    steps, length = 24, 30
    angle = np.linspace(0, np.pi, steps)
    query = np.stack([np.cos(angle), np.sin(angle)], axis=-1).reshape(1, steps, 1, 2)
    score = scores.Location(length)
    score.build(query.shape, (1, length, 1, 2))
    # Columns that rotate as the query does: what training finds where sentences are in step.
    angles = np.linspace(0, np.pi, length)
    score.set_weights([np.stack([np.cos(angles), np.sin(angles)])[None]])
    table = score(query.astype("float32"), np.zeros((1, length, 1, 2), "float32"))
    figure, axes = plt.subplots(figsize=(3.2, 2.6), layout="constrained")
    image = axes.imshow(
        keras.ops.convert_to_numpy(table)[0, 0], cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto"
    )
    axes.set(xlabel="position of the key", ylabel="query, in time")
    figure.colorbar(image, label="score", shrink=0.9)
    _save(figure, "location")


def _save(figure, name):
    figure.savefig(FOLDER / f"scores_{name}.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    for drawn, score_drawn in DRAWN.items():
        draw(drawn, score_drawn)
    draw_location()
