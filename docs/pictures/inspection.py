"""Draws `inspection.png`: what a model that learned to look letters up attends to, and its heads.

`python docs/pictures/inspection.py` trains for a minute or two.
"""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attention import ScaledEmbedding, TransformerBlock, inspection
from keras_attention.visualization import collect_attention

LETTERS, PAIRS, WIDTH, HEADS = 10, 6, 64, 4
WARM, INK, GRAY = "#c8553d", "#1f4e79", "#9aa7b5"


def data(rows, seed):
    """Pairs of a letter and a digit, then one of the letters; and its digit."""
    random = np.random.default_rng(seed)
    letters = random.permuted(np.tile(np.arange(LETTERS), (rows, 1)), axis=1)[:, :PAIRS]
    digits = random.integers(0, 10, (rows, PAIRS))
    asked = random.integers(0, PAIRS, rows)
    pairs = np.stack([letters, LETTERS + digits], axis=-1).reshape(rows, -1)
    each = np.arange(rows)
    return (
        np.concatenate([pairs, letters[each, asked][:, None]], axis=1),
        digits[each, asked],
        asked,
    )


def trained():
    """Two blocks whose last position predicts the digit."""
    keras.utils.set_random_seed(0)
    tokens = keras.Input((2 * PAIRS + 1,), dtype="int32")
    x = ScaledEmbedding(LETTERS + 10, WIDTH)(tokens)
    options = {"num_heads": HEADS, "position": "rotary", "residual": "pre"}
    for name in ("first", "second"):
        x = TransformerBlock(2 * WIDTH, name=name, **options)(x)
    x = keras.layers.LayerNormalization()(x[:, -1])
    model = keras.Model(tokens, keras.layers.Dense(10)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    tokens, digits, _ = data(32768, 0)
    for epoch in range(20):
        history = model.fit(tokens, digits, batch_size=128, verbose=0).history
        print(f"epoch {epoch + 1}: accuracy in training {history['accuracy'][0]:.4f}", flush=True)
        if history["accuracy"][0] > 0.995:
            break
    return model


def accuracy(model, tokens, digits):
    """The part of the rows whose digit is predicted."""
    return float(
        (model.predict(tokens, verbose=0, batch_size=512).argmax(axis=-1) == digits).mean()
    )


def main():
    """Trains and draws."""
    model = trained()
    tokens, digits, asked = data(1024, 1)
    scores = collect_attention(model, tokens[:1])
    gradients = inspection.attention_gradients(model, tokens[:1])
    last = "second/attention"
    rows = {
        "weights of the last layer": scores[last].mean(axis=1)[0, -1],
        "rollout": inspection.attention_rollout(scores)[0, -1],
        "weight × gradient of the last layer": gradients[last].sum(axis=1)[0, -1],
    }
    words = [chr(97 + t) if t < LETTERS else str(t - LETTERS) for t in tokens[0]]
    answer = 2 * int(asked[0]) + 1
    colors = [WARM if n == answer else GRAY for n in range(len(words))]
    figure = Figure(figsize=(5.6, 7.0), layout="constrained")
    panels = figure.subplots(4, height_ratios=[1, 1, 1, 1.8])
    for axes, (name, row) in zip(panels, rows.items(), strict=False):
        axes.bar(range(len(words)), row, color=colors)
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xticks(range(len(words)), words)
        axes.set_title(name, fontsize=11, loc="left")

    def loss(logits):
        return keras.losses.sparse_categorical_crossentropy(digits[:256], logits, from_logits=True)

    gradients = inspection.attention_gradients(model, tokens[:256], target=loss)
    importance = inspection.head_importance(gradients)
    found, axes = accuracy(model, tokens, digits), panels[-1]
    axes.axhline(found, color=GRAY, linestyle="--", linewidth=1)
    for name, color in (("first/attention", INK), ("second/attention", WARM)):
        without = [
            accuracy(inspection.ablate_heads(model, {name: [head]}), tokens, digits)
            for head in range(HEADS)
        ]
        axes.scatter(importance[name], without, color=color, label=name)
        for rank, head in enumerate(np.argsort(importance[name])):
            # Above and below in turns, since heads of like importance are near each other.
            axes.annotate(
                str(head),
                (importance[name][head], without[head]),
                (0, 7 if rank % 2 else -7),
                textcoords="offset points",
                ha="center",
                va="bottom" if rank % 2 else "top",
                fontsize=10,
                color=color,
            )
    axes.set(
        xlabel="importance of each head, numbered from 0",
        ylabel="accuracy without the head",
        ylim=(0, 1.15),
    )
    axes.legend(frameon=False, fontsize=10)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_name("inspection.png"), dpi=100)
    print(words, digits[0], importance, found)


if __name__ == "__main__":
    main()
