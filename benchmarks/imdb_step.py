"""A training step of the IMDB `post` model, ours against Keras's: `python -m benchmarks.imdb_step`.

The same model four times, but for the layer in the middle: `keras_attention.Attention(8, 16)`,
`keras.layers.MultiHeadAttention(8, 16)`, our `MultiHeadAttention(8, 16)`, and nothing (embedding,
pooling, head and optimizer alone). Each is compiled and warmed up, then they take turns, a burst of
steps each, so that a machine that slows down slows all of them. Quoted are medians over the bursts,
of wall-clock time and of the CPU time of all cores (steadier on a machine that others share),
and the ratios of these medians.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import keras_attention

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


def measure(jit_compile, bursts, steps):
    """Milliseconds a step of each model, wall clock and CPU, burst by burst."""
    rng = np.random.default_rng(0)
    # Words as frequent as Zipf's law has them: how many distinct rows of the table a batch
    # touches decides what its gradient costs.
    ids = np.minimum(rng.zipf(1.1, (BATCH * steps, LENGTH)), WORDS - 1).astype("int32")
    labels = rng.integers(0, 2, (BATCH * steps, 1)).astype("float32")
    models = {name: build(attend, jit_compile) for name, attend in LAYERS.items()}
    for model in models.values():
        model.fit(ids, labels, batch_size=BATCH, verbose=0)
    times = {name: [] for name in models}
    for _ in range(bursts):
        for name, model in models.items():
            wall, processor = time.perf_counter(), time.process_time()
            model.fit(ids, labels, batch_size=BATCH, verbose=0, shuffle=False)
            spent = time.perf_counter() - wall, time.process_time() - processor
            times[name].append([seconds / steps * 1000 for seconds in spent])
    return times


def summary(times):
    """Medians in milliseconds a step, and the ratios of Keras's medians to these."""
    medians = {
        name: [statistics.median(kind) for kind in zip(*bursts, strict=True)]
        for name, bursts in times.items()
    }
    return {
        name: {
            "wall_ms": round(wall, 2),
            "processor_ms": round(processor, 2),
            "keras_over_this_wall": round(medians[BASELINE][0] / wall, 3),
            "keras_over_this_processor": round(medians[BASELINE][1] / processor, 3),
        }
        for name, (wall, processor) in medians.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bursts", type=int, default=15)
    parser.add_argument("--steps", type=int, default=30, help="steps a burst")
    parser.add_argument(
        "--small", action="store_true", help="two short bursts, to see that it runs"
    )
    parser.add_argument("--output", type=pathlib.Path, help="a JSON file for the figures")
    arguments = parser.parse_args()
    bursts, steps = (2, 3) if arguments.small else (arguments.bursts, arguments.steps)
    report = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        "batch": BATCH,
        "length": LENGTH,
        "features": FEATURES,
        "words": WORDS,
        "bursts": bursts,
        "steps_a_burst": steps,
    }
    for jit_compile in (False, True):
        mode = "jit_compile" if jit_compile else "no jit_compile"
        report[mode] = summary(measure(jit_compile, bursts, steps))
        print(f"\n{mode}, training step, B{BATCH} T{LENGTH} D{FEATURES}")
        for name, row in report[mode].items():
            print(
                f"{name:42} wall {row['wall_ms']:7.2f} ms (Keras / this "
                f"{row['keras_over_this_wall']:.2f}), processor {row['processor_ms']:7.2f} ms "
                f"({row['keras_over_this_processor']:.2f})"
            )
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
