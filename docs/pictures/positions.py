"""Draws the pictures of the page on positions.

`python docs/pictures/positions.py` writes them beside this file; names of pictures as arguments
draw only those. All but the rows of Shaw's table is computed by keras_attention.
"""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib.pyplot as plt
import numpy as np
from family import GREEN, GREY, INK, SHADES, WARM, array, grid, save

import keras_attention
from keras_attention import positions


def draw_positions_sincos():
    """The vectors of 64 positions, and how alike they are."""
    x = keras.ops.zeros((1, 64, 32))
    vectors = array(keras_attention.SinCosPositionEmbedding()(x))[0]
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 2.6), width_ratios=[1.5, 1])
    axes[0].imshow(vectors.T, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    axes[0].set_xlabel("position")
    axes[0].set_ylabel("feature")
    axes[0].set_title("SinCosPositionEmbedding(), 32 features", fontsize=9)
    for index, color in ((16, GREY), (32, INK), (48, WARM)):
        axes[1].plot(vectors @ vectors[index], color=color, label=f"with {index}", linewidth=1.4)
    axes[1].set_title("inner products of the vectors", fontsize=9)
    axes[1].set_xlabel("position")
    axes[1].set_ylim(None, 19)
    axes[1].legend(frameon=False, fontsize=8, ncols=3, loc="upper center")
    figure.tight_layout()
    save(figure, "positions_sincos")


def scores_by_distance(rotary, distances, size=64):
    """Scores of a query and a key that are both ones, divided by what they are at distance 0."""
    one, many = np.ones((1, 1, 1, size)), np.ones((1, len(distances), 1, size))
    query, key = rotary.encode(
        one.astype("float32"), many.astype("float32"), np.array([distances[-1]]),
        distances[-1] - distances,
    )  # fmt: skip
    return array(keras.ops.einsum("bthk,bshk->bts", query, key))[0, 0] / size


def draw_positions_rotary():
    """Scores by distance, frequencies under each scaling, errors of angles."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 2.8))
    distances = np.arange(0, 2000, 4)
    for wavelength, color in ((10000, INK), (500000, WARM)):
        rotary = positions.Rotary(wavelength)
        axes[0].plot(
            distances, scores_by_distance(rotary, distances), color=color, linewidth=1,
            label=f"max_wavelength={wavelength}",
        )  # fmt: skip
    axes[0].set_title("score of two equal vectors, by distance", fontsize=9)
    axes[0].set_xlabel("i − j")
    axes[0].legend(frameon=False, fontsize=8)

    plain = positions.Rotary().frequencies(128)
    scaled = {"factor": 8.0, "original_max_length": 2048}
    for scaling, color in (("linear", GREY), ("dynamic", GREEN), ("yarn", WARM)):
        rotary = positions.Rotary(scaling=scaling, **scaled)
        found = rotary.frequencies(128)
        if scaling == "dynamic":
            last = keras.ops.convert_to_tensor([8 * 2048.0 - 1])
            found = found * array(rotary._stretch(last, last, 128))[0]
        axes[1].plot(found / plain, color=color, label=scaling, linewidth=1.4)
    axes[1].axhline(1, color=INK, linewidth=1, label="none")
    axes[1].set_ylim(0, 1.05)
    axes[1].set_title("θ by what it was, factor 8 at 8 · 2048", fontsize=9)
    axes[1].set_xlabel("pair of features (of 64)")
    axes[1].legend(frameon=False, fontsize=8)

    at = np.unique(np.logspace(0, np.log10(2**24 - 1), 200).astype("int64"))
    exact = np.exp(1j * at[:, None] * plain)
    product = (at.astype("float32")[:, None] * plain.astype("float32")).astype("float64")
    ours = array(positions.rotary.angles(keras.ops.cast(at, "float32"), plain))
    for angles, color, label in ((product, GREY, "p · θ in float32"), (ours, INK, "Rotary")):
        error = np.abs(np.exp(1j * angles.astype("float64")) - exact).max(axis=-1)
        axes[2].plot(at, np.maximum(error, 1e-9), color=color, label=label, linewidth=1.2)
    axes[2].set_xscale("log")
    axes[2].set_yscale("log")
    axes[2].set_title("largest error of an angle", fontsize=9)
    axes[2].set_xlabel("position p")
    axes[2].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    save(figure, "positions_rotary")


def draw_positions_alibi():
    """The bias of each of eight heads, and the weights of three on queries of zeros."""
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.6), width_ratios=[1.5, 1, 1, 1])
    between = positions.ALiBi().bias_between(8)
    distances = np.arange(-32, 33)
    bias = array(between(np.array([32]), 32 + distances))[:, 0]
    for head, line in enumerate(bias):
        shade = SHADES(0.25 + 0.75 * head / 7)
        axes[0].plot(distances, line, color=shade, linewidth=1.4)
        if head < 5 or head == 7:  # Those between would overlap.
            at = np.flatnonzero(line >= -8)[-1]
            axes[0].text(distances[at] + 1, line[at], f"head {head + 1}", fontsize=7, va="center")
    axes[0].set_ylim(-8.2, 0.3)
    axes[0].set_title("bias of ALiBi(), 8 heads", fontsize=9)
    axes[0].set_xlabel("j − i")
    zeros = keras.ops.zeros((1, 16, 8, 1))
    _, weights = keras_attention.ops.attend(
        zeros, zeros, zeros, bias=between(np.arange(16), np.arange(16)), pattern="causal",
        return_attention_scores=True,
    )  # fmt: skip
    for axis, head in zip(axes[1:], (0, 2, 7), strict=True):
        grid(axis, array(weights)[0, head], f"weights of head {head + 1}")
    axes[3].set_ylabel("queries")
    axes[3].yaxis.set_label_position("right")
    axes[3].set_xlabel("keys")
    save(figure, "positions_alibi")


def draw_positions_relative_bias():
    """Buckets by distance, in both directions and in one, and a table that was trained."""
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 2.7), width_ratios=[1.2, 1.2, 1])
    distances = np.arange(-150, 151)
    for axis, bidirectional in zip(axes, (True, False), strict=False):
        rule = positions.RelativeBias(bidirectional=bidirectional)
        found = rule.buckets()[np.clip(distances, -128, 128) + 128]
        axis.step(distances, found, color=INK, where="mid", linewidth=1.2)
        axis.set_title(f"RelativeBias(bidirectional={bidirectional})", fontsize=9)
        axis.set_xlabel("j − i")
    axes[0].set_ylabel("bucket")
    # Copying the token five positions back: only the bias can tell where that is.
    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    position = positions.RelativeBias(16, 32, bidirectional=False)
    layer = keras_attention.SelfAttention(1, 8, causal=True, position=position)
    inputs = keras.Input((24, 8))
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    x = generator.normal(size=(2048, 24, 8)).astype("float32")
    target = np.zeros_like(x)
    target[:, 5:] = x[:, :-5]
    model.fit(x, target, batch_size=64, epochs=8, verbose=0)
    learned = array(position.bias_between(1)(np.array([23]), np.arange(24)))[0, 0]
    axes[2].bar(np.arange(24) - 23, learned, color=INK)
    axes[2].set_title("a bias that learned to look 5 back", fontsize=9)
    axes[2].set_xlabel("j − i")
    figure.tight_layout()
    save(figure, "positions_relative_bias")


def draw_positions_shaw():
    """Which row of the table a pair reads."""
    figure, axis = plt.subplots(figsize=(3.4, 3))
    tokens = np.arange(12)
    rows = np.clip(tokens - tokens[:, None], -3, 3)
    shown = axis.imshow(rows, cmap="RdBu", vmin=-4, vmax=4)
    axis.set_xlabel("keys j")
    axis.set_ylabel("queries i")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_title("row clip(j − i, −3, 3)", fontsize=9)
    figure.colorbar(shown, ticks=range(-3, 4), boundaries=np.arange(-3.5, 4))
    save(figure, "positions_shaw")


DRAWINGS = {
    name.removeprefix("draw_"): function
    for name, function in list(globals().items())
    if name.startswith("draw_")
}


if __name__ == "__main__":
    for name in sys.argv[1:] or DRAWINGS:
        DRAWINGS[name]()
        print(f"{name}.png")
