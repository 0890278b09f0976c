"""Two corners of a square in, the other two out: what attention adds to an encoder and a decoder.

    python -m examples.square_sequences [--teacher-forcing 0.5] [--seeds 5] [--epochs 50] ...

Trains the same small model without attention and with it, once for each seed, on noisy squares that
it makes itself, and compares the losses on squares that neither has seen. The folder --output gets
the models of the first seed (without_attention.keras and with_attention.keras, from first corners
to last), figures.json, squares.png and alignments.png. It takes about two minutes. If it is
interrupted, the same command goes on after the last seed.
"""

import sys
import time
from pathlib import Path

import numpy as np

from examples import shared
from examples.later import keras
from examples.later import keras_attention as ka
from examples.shared import at_least

PROGRAM = "examples.square_sequences"
KINDS = {"without_attention": False, "with_attention": True}
BATCH, LEARNING_RATE = 128, 0.01
TEST_SEED = 10**6  # The test squares are the same for all seeds; no training seed is as large.

# Data


def squares(count, rng, noise=0.05):
    """Corners in the order they are walked, (count, 4, 2).

    Centers lie near the origin, half diagonals between 0.8 and 1.2. A square starts at any angle
    and goes round either way: which way is to be seen from the first two corners alone, because the
    origin is inside (in all but very few squares). Each corner is then moved by noise.
    """
    start = rng.uniform(0, 2 * np.pi, (count, 1))
    angle = rng.choice([-1, 1], (count, 1)) * np.pi / 2
    angles = start + angle * np.arange(4)
    half_diagonal = rng.uniform(0.8, 1.2, (count, 1, 1))
    center = 0.15 * rng.normal(size=(count, 1, 2))
    corners = center + half_diagonal * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return (corners + noise * rng.normal(size=corners.shape)).astype("float32")


def by_rule(first):
    """The last two corners by geometry: on the side of the first edge on which the origin lies."""
    a, b = first[:, 0], first[:, 1]
    edge = b - a
    left = np.stack([-edge[:, 1], edge[:, 0]], axis=-1)
    side = np.sign(np.sum(left * -(a + b), axis=-1, keepdims=True))
    return np.stack([b + side * left, a + side * left], axis=1)


def training_inputs(settings, seed):
    """All squares that a run sees, epoch after epoch, and its coins: (N, 4, 2) and (N, 1, 1).

    A coin is 1 where the decoder reads the true third corner, with the probability of teacher
    forcing, and else 0. The squares and their order do not depend on that probability.
    """
    order, coins, data = (np.random.default_rng((seed, part)) for part in range(3))
    corners = squares(settings["train"], data, settings["noise"])
    picked = np.concatenate([order.permutation(len(corners)) for _ in range(settings["epochs"])])
    drawn = coins.random((len(picked), 1, 1)) < settings["teacher_forcing"]
    return corners[picked], drawn.astype("float32")


# Model


def build(hidden, attention):
    """A model for training and one for inference, of the same layers.

    A GRU reads the first two corners. Another starts from its last state and the second corner, and
    predicts the next corner at each step; it reads its prediction next, or the true corner where
    the coin is 1. With attention it also reads what it attends to (Bahdanau et al. 2015).

    Returns:
        The model from first corners (B, 2, 2), last ones and coins (B, 1, 1) to predicted corners,
        and that from first corners to predicted ones and, with attention, alignments (B, 1, 2, 2).
    """
    encoder = keras.layers.GRU(
        hidden, return_sequences=True, return_state=True, unroll=True, name="encoder"
    )
    cell = keras.layers.GRUCell(hidden)
    if attention:
        cell = ka.AttentionCell(
            cell,
            ka.Attention(score=ka.scores.Additive(hidden)),
            output_context=True,
            return_attention_scores=True,
        )
    decoder = keras.layers.RNN(cell, return_state=True, unroll=True, name="decoder")
    corner = keras.layers.Dense(2, name="corner")

    def decode(first, last=None, coin=None):
        memory, state = encoder(first)
        states, read, predicted, alignments = [state], first[:, -1:], [], []
        for step in range(2):
            if attention:
                states = cell.initial_state(memory, states)
            output, *states = decoder(read, initial_state=states)
            if attention:
                output, alignment = cell.split_outputs(output)
                alignments.append(alignment[:, :, None])
            predicted.append(corner(output)[:, None])
            read = predicted[-1]
            if coin is not None:
                read = coin * last[:, step : step + 1] + (1 - coin) * read
        found = {"corners": keras.ops.concatenate(predicted, axis=1)}
        if attention:
            found["alignments"] = keras.ops.concatenate(alignments, axis=2)
        return found

    first, last = keras.Input((2, 2), name="first"), keras.Input((2, 2), name="last")
    coin = keras.Input((1, 1), name="coin")
    training = keras.Model([first, last, coin], decode(first, last, coin)["corners"])
    return training, keras.Model(first, decode(first))


# Training


def compare(run):
    """Trains both models with every seed, and writes what the run is for.

    Both see the same squares in the same order with the same coins. Nothing is chosen by the test
    squares: the epochs are as many as requested, and the last one counts.
    """
    settings = run.settings
    test = squares(settings["test"], np.random.default_rng(TEST_SEED), settings["noise"])
    todo = [(kind, seed) for kind in KINDS for seed in range(settings["seeds"])]
    for kind, seed in todo[len(run.epochs) :]:
        start = time.perf_counter()
        keras.utils.set_random_seed(seed)
        training, inference = build(settings["hidden"], KINDS[kind])
        # On TensorFlow, XLA takes longer to compile this than it saves.
        jit_compile = keras.backend.backend() == "jax"
        training.compile(keras.optimizers.Adam(LEARNING_RATE), "mse", jit_compile=jit_compile)
        corners, coins = training_inputs(settings, seed)
        first, last = corners[:, :2], corners[:, 2:]
        training.fit([first, last, coins], last, batch_size=BATCH, shuffle=False, verbose=0)
        predicted = inference.predict(test[:, :2], BATCH, verbose=0)["corners"]
        loss = float(np.mean((predicted - test[:, 2:]) ** 2))
        print(f"{kind}, seed {seed}: test loss {loss:.5f}", flush=True)
        if seed == 0:
            run.write(f"{kind}.keras", inference.save)
        seconds, parameters = round(time.perf_counter() - start, 1), training.count_params()
        run.finish_epoch(kind=kind, seed=seed, loss=loss, seconds=seconds, parameters=parameters)
    models = {kind: keras.models.load_model(run.path / f"{kind}.keras") for kind in KINDS}
    predicted = {k: m.predict(test[:, :2], BATCH, verbose=0) for k, m in models.items()}
    alignments = predicted["with_attention"]["alignments"][:, 0]
    found = {kind: found["corners"] for kind, found in predicted.items()}
    run.write("squares.png", lambda path: draw_squares(path, test, found))
    corners, title = [f"corner {n}" for n in (1, 2, 3, 4)], "mean of the test squares"
    drawn = ka.visualization.plot_attention(alignments.mean(0), corners[2:], corners[:2], title)
    run.write("alignments.png", lambda path: drawn.savefig(path, dpi=100, format="png"))
    losses = {kind: [e["loss"] for e in run.epochs if e["kind"] == kind] for kind in KINDS}
    several = settings["seeds"] > 1
    deviations = {k: float(np.std(x, ddof=1)) if several else None for k, x in losses.items()}
    run.finish(
        test_losses=losses,
        means={kind: float(np.mean(found)) for kind, found in losses.items()},
        standard_deviations=deviations,
        rule_loss=float(np.mean((by_rule(test[:, :2]) - test[:, 2:]) ** 2)),
        mean_alignments=alignments.mean(axis=0).tolist(),
        parameters={e["kind"]: e["parameters"] for e in run.epochs},
    )


def draw_squares(path, corners, predicted):
    """The first few squares: given corners, true ones, and what each model predicts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    for square, axes in zip(range(min(8, len(corners))), figure.subplots(2, 4).flat, strict=False):
        true = corners[square]
        axes.set(xlim=(-1.9, 1.9), ylim=(-1.9, 1.9), aspect="equal", xticks=[], yticks=[])
        axes.plot(*true[[0, 1, 2, 3, 0]].T, color="0.85", zorder=0)
        axes.scatter(*true[:2].T, color="0.2", label="given")
        for place, corner in enumerate(true, start=1):
            axes.annotate(str(place), corner, textcoords="offset points", xytext=(6, 6))
        axes.scatter(*true[2:].T, facecolors="none", edgecolors="0.2", s=70, label="true")
        for kind, found in predicted.items():
            label, color = kind.replace("_", " "), "tab:blue" if KINDS[kind] else "tab:orange"
            axes.scatter(*found[square].T, marker="x", color=color, label=label)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=100, format="png")


# The command line

SMALL = {"seeds": 2, "epochs": 2, "train": 256, "test": 128}


def parse(argv):
    """The settings of a command line, and the folder."""
    parser = shared.command_line(PROGRAM, __doc__)
    parser.add_argument("--small", action="store_true", help="a trial of seconds")
    probability = shared.number(float, "between 0 and 1", lambda value: 0 <= value <= 1)
    shared.add_options(
        parser,
        ("output", Path, "runs/square-sequences", "the folder of the run"),
        ("seeds", at_least(1), 5, "runs of each model, with data and weights of their own"),
        ("epochs", at_least(1), 50, "passes over the training squares"),
        ("train", at_least(1), 2048, "squares to train on"),
        ("test", at_least(1), 2048, "squares to measure on"),
        ("hidden", at_least(1), 8, "units of encoder and decoder"),
        ("teacher-forcing", probability, 0.5, "how often training reads the true corner"),
        ("noise", shared.fraction, 0.05, "standard deviation of the noise of a coordinate"),
    )
    if parser.parse_known_args(argv)[0].small:
        parser.set_defaults(**SMALL)
    settings = vars(shared.parse(parser, argv))
    del settings["small"]
    return settings, settings.pop("output")


def command(argv):
    """Trains and compares the models, unless that is done."""
    settings, output = parse(argv)
    with shared.Run(output, PROGRAM, settings) as run:
        if run.finished:
            print(f"The run in {output} is finished already.")
        else:
            run.begin()
            compare(run)
    print(f"mean test loss of {settings['seeds']} seeds (standard deviation):")
    for kind, mean in run.figures["means"].items():
        deviation = run.figures["standard_deviations"][kind]
        deviation = "" if deviation is None else f" ({deviation:.5f})"
        parameters = run.figures["parameters"][kind]
        print(f"  {kind.replace('_', ' '):18} {mean:.5f}{deviation}, {parameters} parameters")
    print(f"  {'rule of geometry':18} {run.figures['rule_loss']:.5f}\nin {output}")


main = shared.program(command)

if __name__ == "__main__":
    sys.exit(main())
