"""Draws `linear_weights.png` and `linear_time.png` of the page on linear attention.

`python docs/pictures/linear.py`: what the recurrences weigh, computed by their kernels, and the
times of benchmarks/results/linear_*.json.
"""

import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attention import feature_maps, ops
from keras_attention.kernels.linear_time import delta, recurrence

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
INK, WARM, GRAY = "#1f4e79", "#c8553d", "#9aa7b5"
LENGTH, SIZE, FIRST, CHAPTER, SECOND = 16, 16, 3, 7, 11
TIMES = {
    "softmax": "MultiHeadAttention",
    "GatedDeltaNet": "GatedDeltaNet",
    "GatedLinearAttention": "GatedLinearAttention",
    "Retention": "Retention",
    "LinearAttention": "LinearAttention",
}


def weights():
    """By mechanism, the weights (S,) of the last query, whose key was stored twice."""
    random = np.random.default_rng(0)
    keys = random.normal(size=(LENGTH, SIZE))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    keys[SECOND] = keys[-1] = keys[FIRST]
    query = key = keys[None, :, None].astype("float32")
    value = np.eye(LENGTH, dtype="float32")[None, :, None]  # An output is a row of weights.
    decay = np.zeros((1, LENGTH, 1, SIZE), "float32")
    decay[:, CHAPTER] = recurrence.SMALLEST  # A new chapter: what is before it is forgotten.
    written = np.ones((1, LENGTH, 1, 1), "float32")
    written[:, -1] = 0  # The last token only asks.
    features = feature_maps.EluFeatures()
    mapped = features.prepare_query(4 * query), features.prepare_key(4 * key)
    found = {
        "softmax": ops.attend(4 * SIZE * query, key, value, pattern="causal"),
        "LinearAttention": recurrence.run(*mapped, value)[0],
        "Retention, γ = 0.9": recurrence.run(query, key, value, np.log([[[[0.9]]]]))[0],
        "GatedLinearAttention, token 7 forgets": recurrence.run(query, key, value, decay)[0],
        "GatedDeltaNet": delta.run(query, key, value, written)[0],
    }
    # The last token is left out, and sums are divided by the weight of the others.
    rows = {name: keras.ops.convert_to_numpy(x)[0, -1, 0, :-1] for name, x in found.items()}
    rows["LinearAttention"] = rows["LinearAttention"] / rows["LinearAttention"].sum()
    rows["softmax"] = rows["softmax"] / rows["softmax"].sum()
    return rows


def draw_weights():
    """A row of bars for each mechanism."""
    figure = Figure(figsize=(5.6, 6.2), layout="constrained")
    rows = weights()
    colors = [WARM if n in (FIRST, SECOND) else GRAY for n in range(LENGTH - 1)]
    for axes, (name, row) in zip(
        figure.subplots(len(rows), sharex=True), rows.items(), strict=True
    ):
        axes.bar(range(LENGTH - 1), row, color=colors)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_title(name, fontsize=11, loc="left")
        axes.set_ylim(min(-0.1, row.min() * 1.1), max(0.6, row.max() * 1.1))
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks(range(LENGTH - 1))
    axes.set_xlabel("token", fontsize=11)
    figure.savefig(HERE / "linear_weights.png", dpi=100)


def draw_time():
    """Seconds of a training step by length, on one core."""
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    rows = json.loads((RESULTS / "linear_jax.json").read_text(encoding="utf-8"))["rows"]
    colors = "#111111", WARM, "#c9962c", "#5b8c5a", INK
    for (label, name), color in zip(TIMES.items(), colors, strict=True):
        of = {row["length"]: row for row in rows if (row["name"], row["figure"]) == (name, "steps")}
        lengths = sorted(of)
        line = {"color": color, "linewidth": 2 if label == "softmax" else 1.3, "marker": "o"}
        axes.loglog(lengths, [of[n]["value"] for n in lengths], label=label, markersize=4, **line)
    axes.set_xticks([2048, 8192, 65536], ["2,048", "8,192", "65,536"], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_yticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
    axes.set(xlabel="tokens", ylabel="seconds of a training step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=10)
    figure.savefig(HERE / "linear_time.png", dpi=100)


if __name__ == "__main__":
    draw_weights()
    draw_time()
