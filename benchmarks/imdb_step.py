"""A training step of the IMDB `post` model, ours against Keras's: `python -m benchmarks.imdb_step`.

The same model four times, but for the layer in the middle: `keras_attention.Attention(8, 16)`,
`keras.layers.MultiHeadAttention(8, 16)`, our `MultiHeadAttention(8, 16)`, and nothing (embedding,
pooling, head and optimizer alone). Each is compiled and warmed up, then they take turns, a burst of
steps each, so that a machine that slows down slows all of them. Quoted are medians over the bursts,
of wall-clock time and of the CPU time of all cores (steadier on a machine that others share),
and the ratios of these medians.
"""

import keras
import numpy as np

import keras_attention
from benchmarks import runner

WORDS, LENGTH, FEATURES, BATCH = 20_000, 80, 128, 32

LAYERS = {
    "keras.layers.MultiHeadAttention(8, 16)": lambda x: keras.layers.MultiHeadAttention(8, 16)(
        x, x
    ),
    "keras_attention.Attention(8, 16)": lambda x: keras_attention.Attention(8, 16)([x, x, x]),
    "keras_attention.MultiHeadAttention(8, 16)": lambda x: keras_attention.MultiHeadAttention(
        8, 16
    )(x),
    "no attention": lambda x: x,
}
BASELINE = "keras.layers.MultiHeadAttention(8, 16)"


def build(attend, jit_compile):
    ids = keras.Input((LENGTH,), dtype="int32")
    x = attend(keras.layers.Embedding(WORDS, FEATURES)(ids))
    x = keras.layers.GlobalAveragePooling1D()(x)
    x = keras.layers.Dropout(0.5)(x)
    model = keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", jit_compile=jit_compile)
    return model


def rows(options):
    """A row of each model without `jit_compile`, and with it."""
    rng = np.random.default_rng(0)
    # Words as frequent as Zipf's law has them: how many distinct rows of the table a batch
    # touches decides what its gradient costs.
    ids = np.minimum(rng.zipf(1.1, (BATCH * options.steps, LENGTH)), WORDS - 1).astype("int32")
    labels = rng.integers(0, 2, (BATCH * options.steps, 1)).astype("float32")

    def burst(attend, jit_compile):
        model = build(attend, jit_compile)
        return lambda: model.fit(ids, labels, batch_size=BATCH, verbose=0, shuffle=False)

    for jit_compile in (False, True):
        runs = {name: burst(attend, jit_compile) for name, attend in LAYERS.items()}
        found = runner.in_turns(runs, options.repeats, options.seconds)
        for name, figures in found.items():
            row = {"name": name, "mode": "jit_compile" if jit_compile else "no jit_compile"}
            for kind, key in (("wall", "ms"), ("processor", "processor_ms")):
                row[f"{kind}_ms"] = round(figures[key] / options.steps, 2)
                row[f"keras_over_this_{kind}"] = round(found[BASELINE][key] / figures[key], 3)
            yield row


def main():
    parser = runner.parser(__doc__)
    parser.add_argument("--steps", type=int, default=30, help="steps a burst")
    parser.add_argument("--repeats", type=int, default=15, help="bursts of each model")
    parser.add_argument("--seconds", type=float, default=120, help="for all bursts of a mode")
    options = runner.parsed(parser)
    if options.small:
        options.steps = 3

    def text(row):
        return (
            f"{row['mode']:14} {row['name']:42} wall {row['wall_ms']:7.2f} ms (Keras / this "
            f"{row['keras_over_this_wall']:.2f}), processor {row['processor_ms']:7.2f} ms "
            f"({row['keras_over_this_processor']:.2f})"
        )

    about = {"batch": BATCH, "length": LENGTH, "features": FEATURES, "words": WORDS}
    runner.report(rows(options), options, text, **about, steps_a_burst=options.steps)


if __name__ == "__main__":
    main()
