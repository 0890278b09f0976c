"""Training that can be interrupted at any moment, and what it leaves behind."""

import math
import sys

import keras
import numpy as np

from examples import environment, model_files
from examples.errors import UsageError
from examples.language_model import models, text
from examples.language_model.prediction import MODEL
from examples.progress import Progress

CURVES = "curves.png"
# Tokens of the validation text that are measured on: after each epoch, evenly spread windows of
# them, and at the end all, up to a limit that Tiny Shakespeare is far below.
MEASURED, MEASURED_AT_THE_END = 2**15, 2**21


def train(run, dataset, settings):
    """Trains the model, or resumes it, and returns the figures.

    An epoch is `measure_every` steps on windows at random places of the training text. After each,
    the loss of validation windows is measured. Nothing is chosen by it: the model that is kept is
    the last.

    Args:
        run: the `RunDirectory` to write to.
        dataset: the `data.Dataset`.
        settings: the options of the command line that the figures depend on.
    """
    run.begin(
        {**settings, "data": dataset.checksum()},
        dataset=dataset.name,
        characters={part: len(getattr(dataset, part)) for part in ("train", "validation")},
        versions=environment.versions(),
        machine=environment.machine(),
    )
    keras.utils.set_random_seed(settings["seed"])
    policy = keras.config.dtype_policy()
    if settings["mixed_precision"]:
        keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, tokens = _model_and_tokens(run, dataset, settings)
    finally:
        keras.config.set_dtype_policy(policy)
    numbers = {
        part: _encode(tokens, getattr(dataset, part), part, settings["context"])
        for part in ("train", "validation")
    }
    models.compile_model(model, settings)
    print(
        f"Training {model.count_params():,} weights on {len(numbers['train']):,} tokens of "
        f"{tokens.vocabulary_size:,} kinds. The first steps take longest.",
        flush=True,
    )
    windows = Windows(numbers["train"], settings)
    progress = Progress(windows)
    model.fit(
        windows,
        initial_epoch=len(run.epochs),
        epochs=settings["steps"] // len(windows),
        shuffle=False,
        verbose=0,
        callbacks=[progress, Epochs(run, windows, progress, numbers["validation"])],
    )
    return _finish(run, model, dataset, numbers["validation"], settings)


def _model_and_tokens(run, dataset, settings):
    """Those of the last finished epoch, or new ones."""
    kind = text.KINDS[settings["tokens"]]
    model = run.load_checkpoint(model_files.load)
    if model is not None:
        print(f"Resuming after step {run.epochs[-1]['steps']:,}.")
        return model, text.load(kind, run.path)
    if settings["pretrained"]:
        tokens = text.load(kind, settings["pretrained"])
        model = models.from_folder(
            settings["pretrained"], tokens.vocabulary_size, settings["context"]
        )
    else:
        if kind is text.Characters:
            tokens = kind.learn(dataset.text)
        else:
            print("Learning subwords …", flush=True)
            tokens = kind.learn(dataset.train, settings["vocabulary_size"])
        model = models.build(tokens.vocabulary_size, settings)
    run.write(kind.FILE, tokens.save)
    return model, tokens


def _encode(tokens, part, name, context):
    numbers = tokens.encode(part)
    if len(numbers) <= context:
        raise UsageError(
            f"The {name} part of the text has {len(numbers):,} tokens, and must have more than "
            f"--context {context}."
        )
    return numbers


class Windows(keras.utils.PyDataset):
    """Batches of windows at places that depend on the seed and the epoch alone.

    Args:
        numbers: the tokens of the text.
        settings: as in `train`.
    """

    def __init__(self, numbers, settings):
        super().__init__()
        self.numbers = numbers
        self.settings = settings
        self.draw(epoch=0)

    def draw(self, epoch):
        """Makes them those of an epoch, counted from 0."""
        rng = np.random.default_rng((self.settings["seed"], epoch))
        size = self.settings["measure_every"], self.settings["batch_size"]
        self.starts = rng.integers(len(self.numbers) - self.settings["context"], size=size)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        return windows_at(self.numbers, self.starts[index], self.settings["context"])

    @property
    def tokens(self):
        """How many tokens each batch has."""
        return [self.starts.shape[1] * self.settings["context"]] * len(self)


def windows_at(numbers, starts, context):
    """Windows (n, context) that start at some tokens, and the tokens after each of theirs."""
    windows = numbers[starts[:, None] + np.arange(context + 1)]
    return windows[:, :-1], windows[:, 1:]


class Epochs(keras.callbacks.Callback):
    """What an epoch begins and ends with: its windows and dropout, its figures, its checkpoint.

    Args:
        run: the `RunDirectory` to write to.
        windows: the `Windows`.
        progress: the `Progress`.
        validation: the tokens that are measured on.
    """

    def __init__(self, run, windows, progress, validation):
        super().__init__()
        self.run = run
        self.windows = windows
        self.progress = progress
        self.validation = validation

    def on_epoch_begin(self, epoch, logs=None):
        self.windows.draw(epoch)
        # Dropout of the epoch alone too, so that a resumed run is the same run.
        rng = np.random.default_rng((self.windows.settings["seed"], epoch, 1))
        # Some of PyTorch's is drawn from its own generator.
        keras.utils.set_random_seed(int(rng.integers(2**31)))
        for variable in self.model.variables:
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=variable.shape))

    def on_epoch_end(self, epoch, logs=None):
        settings = self.windows.settings
        figures = {
            "epoch": epoch + 1,
            "steps": (epoch + 1) * len(self.windows),
            "seconds": round(self.progress.seconds, 2),
            "tokens_per_second": round(sum(self.windows.tokens) / self.progress.seconds, 1),
            "train_loss": logs["loss"],
            "validation_loss": measure(self.model, self.validation, settings, MEASURED)[0],
        }
        self.run.finish_epoch(self.model, figures)
        print(
            f"step {figures['steps']:,}: train loss {figures['train_loss']:.4f}, validation loss "
            f"{figures['validation_loss']:.4f}, {figures['seconds']:.1f} s, "
            f"{figures['tokens_per_second']:,.0f} tokens/s",
            flush=True,
        )


def measure(model, numbers, settings, most):
    """The mean loss of a token, and of how many, at most about `most`.

    The windows are disjoint and cover the text, or are evenly spread over it. They are as long as
    those of training, so a token has half of `context` before it on average.
    """
    context = settings["context"]
    starts = np.arange(0, len(numbers) - context, context)
    count = min(len(starts), max(1, most // context))
    chosen = starts[np.arange(count) * len(starts) // count]
    given, wanted = windows_at(numbers, chosen, context)
    loss = model.evaluate(given, wanted, batch_size=settings["batch_size"], verbose=0)
    return loss, wanted.size


def _finish(run, model, dataset, validation, settings):
    """Writes what the run is for: the model, and how good it is."""
    loss, measured = measure(model, validation, settings, MEASURED_AT_THE_END)
    run.write(MODEL, lambda path: model.save(path, include_optimizer=False))
    try:
        from examples.language_model import pictures

        run.write(CURVES, lambda path: pictures.draw_curves(path, run.figures))
    except ImportError as error:
        print(f"No {CURVES}: {error} (pip install matplotlib)", file=sys.stderr)
    run.finish(
        validation_loss=loss,
        validation_perplexity=math.exp(loss),
        validation_loss_per_character=loss * len(validation) / len(dataset.validation),
        validation_tokens=measured,
    )
    return run.figures
