"""Draws `recurrent_alignments.png`: what decoders that learned to reverse a sequence attend to.

python docs/pictures/recurrent.py
"""

from pathlib import Path

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_attention import Attention, AttentionCell, patterns, scores

LENGTH, TOKENS, UNITS = 8, 10, 32
CELLS = {
    "Bahdanau, additive": {"attention": scores.Additive(UNITS), "mode": "bahdanau"},
    "Luong, general": {"attention": "general", "mode": "luong", "attention_dim": UNITS},
    "Luong, local-m, D = 2, copying": {
        "attention": Attention(score="general", pattern=patterns.SlidingWindow(2, 2)),
        "mode": "luong",
        "attention_dim": UNITS,
    },
}


def trained(arguments, reverse):
    """A model of tokens and alignments, after some minutes of practice."""
    keras.utils.set_random_seed(0)
    source = keras.Input((LENGTH,), dtype="int32")
    before = keras.Input((LENGTH,), dtype="int32")
    embedded = keras.layers.Embedding(TOKENS, UNITS)(source)
    memory = keras.layers.Bidirectional(keras.layers.GRU(UNITS, return_sequences=True))(embedded)
    cell = AttentionCell(keras.layers.GRUCell(UNITS), return_attention_scores=True, **arguments)
    start = keras.layers.Dense(UNITS, activation="tanh")(memory[:, 0])
    outputs = keras.layers.RNN(cell, return_sequences=True)(
        keras.layers.Embedding(TOKENS, UNITS)(before),
        initial_state=cell.initial_state(memory, start),
    )
    outputs, alignments = cell.split_outputs(outputs)
    logits = keras.layers.Dense(TOKENS)(outputs)
    model = keras.Model([source, before], logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    tokens = np.random.default_rng(0).integers(1, TOKENS, (8192, LENGTH))
    target = tokens[:, ::-1] if reverse else tokens
    shifted = np.pad(target[:, :-1], ((0, 0), (1, 0)))
    history = model.fit([tokens, shifted], target, batch_size=64, epochs=6, verbose=0).history
    print(f"accuracy in training {history['accuracy'][-1]:.4f}")
    return keras.Model([source, before], alignments), tokens[:1], target[:1], shifted[:1]


def main():
    """Trains and draws."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    for axes, (title, arguments) in zip(figure.subplots(1, 3), CELLS.items(), strict=True):
        model, tokens, target, shifted = trained(arguments, reverse="copying" not in title)
        alignments = model.predict([tokens, shifted], verbose=0)[0, 0]
        image = axes.imshow(alignments, vmin=0, vmax=1, cmap="Blues")
        ticks = range(LENGTH)
        axes.set(title=title, xlabel="memory", xticks=ticks, xticklabels=tokens[0])
        axes.set(yticks=ticks, yticklabels=target[0])
    figure.axes[0].set_ylabel("output")
    figure.colorbar(image, ax=figure.axes, label="weight")
    figure.savefig(Path(__file__).with_name("recurrent_alignments.png"), dpi=100)


if __name__ == "__main__":
    main()
