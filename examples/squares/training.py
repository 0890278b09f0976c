"""Training both models on squares, seed after seed, and what that leaves behind."""

import platform
import time

import keras
import numpy as np

import keras_attention
from examples.squares import pictures
from examples.squares.data import by_rule, squares
from examples.squares.models import Forecaster

KINDS = {"without_attention": False, "with_attention": True}
BATCH = 128
LEARNING_RATE = 0.01
# The test squares are the same for all seeds; no training seed is as large.
TEST_SEED = 10**6


def train(run, settings):
    """Trains both models with every seed, and returns the results.

    Both see the same squares in the same order with the same coins of teacher forcing. Nothing is
    chosen by the test squares: the epochs are as many as requested, and the last one counts.

    Args:
        run: the `RunDirectory` to write to.
        settings: the options of the command line that the results depend on.
    """
    run.begin(settings, versions=_versions())
    test = squares(settings["test"], np.random.default_rng(TEST_SEED), settings["noise"])
    losses, seconds, parameters, predictions = {}, {}, {}, {}
    for kind, attention in KINDS.items():
        losses[kind], start = [], time.perf_counter()
        model = Trainer(settings["hidden"], attention)
        parameters[kind] = model.forecaster.training.count_params()
        for seed in range(settings["seeds"]):
            model.start(seed)
            model.fit(*training_inputs(settings, seed))
            predicted = model.forecaster.inference.predict(test[:, :2], BATCH, verbose=0)
            losses[kind].append(float(np.mean((predicted["corners"] - test[:, 2:]) ** 2)))
            print(f"{kind}, seed {seed}: test loss {losses[kind][-1]:.5f}", flush=True)
            if seed == 0:
                predictions[kind] = predicted
                run.write(f"{kind}.keras", model.forecaster.inference.save)
        seconds[kind] = round(time.perf_counter() - start, 1)
    corners = {kind: predicted["corners"] for kind, predicted in predictions.items()}
    run.write("squares.png", lambda path: pictures.draw_squares(path, test, corners))
    alignments = predictions["with_attention"]["alignments"][:, 0]
    run.write("alignments.png", lambda path: pictures.draw_alignments(path, alignments))
    run.finish(
        test_losses=losses,
        means={kind: float(np.mean(values)) for kind, values in losses.items()},
        standard_deviations={
            kind: float(np.std(values, ddof=1)) if len(values) > 1 else None
            for kind, values in losses.items()
        },
        rule_loss=float(np.mean((by_rule(test[:, :2]) - test[:, 2:]) ** 2)),
        mean_alignments=alignments.mean(axis=0).tolist(),
        parameters=parameters,
        seconds=seconds,
    )
    return run.figures


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


class Trainer:
    """A model that is compiled once, and trained anew with each seed."""

    def __init__(self, hidden, attention):
        self._arguments = (hidden, attention)
        self.forecaster = Forecaster(*self._arguments)
        model = self.forecaster.training
        # XLA takes longer to compile this than it saves.
        jit_compile = "auto" if keras.backend.backend() == "jax" else False
        model.compile(keras.optimizers.Adam(LEARNING_RATE), "mse", jit_compile=jit_compile)
        model.optimizer.build(model.trainable_variables)
        self._fresh = [keras.ops.convert_to_numpy(v) for v in model.optimizer.variables]

    def start(self, seed):
        """Draws new weights, and resets the optimizer."""
        keras.utils.set_random_seed(seed)
        model = self.forecaster.training
        model.set_weights(Forecaster(*self._arguments).training.get_weights())
        for variable, value in zip(model.optimizer.variables, self._fresh, strict=True):
            variable.assign(value)

    def fit(self, corners, coins):
        """One pass over what `training_inputs` gave, in its order."""
        first, last = corners[:, :2], corners[:, 2:]
        self.forecaster.training.fit(
            [first, last, coins], last, batch_size=BATCH, shuffle=False, verbose=0
        )


def _versions():
    return {
        "python": platform.python_version(),
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
        "numpy": np.__version__,
        "keras_attention": keras_attention.__version__,
    }
