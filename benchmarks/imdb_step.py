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

import keras_attention as ka
from benchmarks import runner
from benchmarks.imdb_models import words

WORDS, LENGTH, FEATURES, BATCH = 20_000, 80, 128, 32
KERAS = "keras.layers.MultiHeadAttention(8, 16)"
LAYERS = {
    KERAS: lambda x: keras.layers.MultiHeadAttention(8, 16)(x, x),
    "keras_attention.Attention(8, 16)": lambda x: ka.Attention(8, 16)([x, x, x]),
    "keras_attention.MultiHeadAttention(8, 16)": lambda x: ka.MultiHeadAttention(8, 16)(x),
    "no attention": lambda x: x,
}


def step(attend, jit_compile, batches):
    """A function that makes a step of each of so many batches."""
    ids = keras.Input((LENGTH,), dtype="int32")
    x = attend(keras.layers.Embedding(WORDS, FEATURES)(ids))
    x = keras.layers.GlobalAveragePooling1D()(x)
    x = keras.layers.Dropout(0.5)(x)
    model = keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", jit_compile=jit_compile)
    given = words((BATCH * batches, LENGTH), WORDS)
    labels = np.random.default_rng(0).integers(0, 2, (BATCH * batches, 1)).astype("float32")
    return lambda: model.fit(given, labels, batch_size=BATCH, verbose=0, shuffle=False)


def rows(options, steps):
    """A row of each model without `jit_compile`, and with it."""
    for jit in (False, True):
        runs = {name: step(attend, jit, steps) for name, attend in LAYERS.items()}
        found = runner.in_turns(runs, options.repeats, options.seconds)
        for name, figures in found.items():
            row = {"name": name, "mode": "jit_compile" if jit else "no jit_compile"}
            for kind, key in (("wall", "ms"), ("processor", "processor_ms")):
                row[f"{kind}_ms"] = round(figures[key] / steps, 2)
                row[f"keras_over_this_{kind}"] = round(found[KERAS][key] / figures[key], 3)
            yield row


def main():
    options = runner.parsed(__doc__, rows=(), seconds=120)
    steps = 3 if options.small else 30
    about = {"batch": BATCH, "length": LENGTH, "features": FEATURES, "words": WORDS}
    runner.report(rows(options, steps), options, **about, steps_a_burst=steps)


if __name__ == "__main__":
    main()
