"""Draws `sets_slots.png`: slots that learned to group points, after each update.

`python docs/pictures/sets.py` trains for a minute.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from keras_attention import SlotAttention
from keras_attention.visualization import collect_attention

GROUPS, POINTS, WIDTH, SPREAD = 4, 60, 32, 0.12
COLORS = np.array([to_rgb(x) for x in ("#1f4e79", "#c8553d", "#5b8c5a", "#c9962c")])


def sets(rows, seed):
    """Points (rows, POINTS, 2) around GROUPS centers, in no order."""
    random = np.random.default_rng(seed)
    # One in each quadrant, in any order.
    centers = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]) * random.uniform(
        0.2, 1, (rows, GROUPS, 2)
    )
    member = random.integers(0, GROUPS, (rows, POINTS))
    points = np.take_along_axis(centers, member[..., None], axis=1)
    return (points + SPREAD * random.normal(size=points.shape)).astype("float32")


def unlikely(points, centers):
    """Minus the log of the probability of points (B, S, 2) around centers (B, K, 2)."""
    distances = keras.ops.sum((points[:, :, None] - centers[:, None]) ** 2, axis=-1)
    return -keras.ops.mean(keras.ops.logsumexp(-distances / (2 * SPREAD**2), axis=-1), axis=-1)


def main():
    """Trains and draws."""
    keras.utils.set_random_seed(0)
    points = keras.Input((None, 2))
    x = keras.layers.Dense(WIDTH, activation="relu")(points)
    x = keras.layers.Dense(WIDTH)(x)
    slots = SlotAttention(GROUPS, WIDTH, 2 * WIDTH, seed=1)(x)
    x = keras.layers.Dense(WIDTH, activation="relu")(slots)
    model = keras.Model(points, keras.layers.Dense(2)(x))
    rate = keras.optimizers.schedules.CosineDecay(2e-3, 24 * 128)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0), unlikely)
    data = sets(8192, 0)
    history = model.fit(data, data, batch_size=64, epochs=24, verbose=0).history["loss"]
    print("loss", *(f"{x:.2f}" for x in history))

    shown = sets(64, 2)
    weights = [x[:, 0] for x in collect_attention(model, shown).values()]
    row = 0
    figure = Figure(figsize=(6.4, 2.5), layout="constrained")
    for n, axes in enumerate(figure.subplots(1, len(weights))):
        axes.scatter(*shown[row].T, c=weights[n][row].T @ COLORS, s=16)
        axes.set_title(f"update {n + 1}", fontsize=12)
        axes.set(xticks=[], yticks=[], aspect="equal")
    figure.savefig(Path(__file__).with_name("sets_slots.png"), dpi=100)


if __name__ == "__main__":
    main()
