"""Training that can be interrupted at any moment, and what it leaves behind."""

import os
import platform
import sys
import time

import keras
import numpy as np
import sacrebleu
import tensorflow as tf

import keras_attention
from examples import (
    model_files,
    translation_models,
    translation_prediction,
    translation_recipes,
    translation_text,
)

MODEL = "model.keras"
TOKENIZER = "tokenizer.spm"
CURVES = "curves.png"
ALIGNMENT = "alignment.png"
TRANSLATIONS = "test.txt"


def train(run, dataset, settings):
    """Trains the model, or resumes it, and returns the figures.

    After each epoch the loss of the validation pairs is measured. Nothing is chosen by it: the
    epochs are as many as were asked for, and the model that is kept is the last, with the moving
    mean of its weights. That translates the validation and the test sentences at the end.

    Args:
        run: the `RunDirectory` to write to.
        dataset: the `translation_data.Dataset`.
        settings: the options of the command line that the figures depend on.
    """
    recipe = translation_recipes.RECIPES[settings["model"]]
    sets = {
        part: getattr(dataset, part).limited(settings["limit"], settings["seed"])
        for part in ("train", "validation", "test")
    }
    run.begin(
        {
            **settings,
            "data": [pairs.checksum() for pairs in sets.values()],
        },
        dataset=dataset.name,
        sizes={part: len(pairs) for part, pairs in sets.items()},
        languages=list(dataset.languages),
        versions=_versions(),
        machine=_machine(),
    )

    keras.utils.set_random_seed(settings["seed"])
    model = run.load_checkpoint(model_files.load)
    if model is None:
        print("Learning subwords …", flush=True)
        tokenizer = translation_text.learn_tokenizer(
            [*sets["train"].source, *sets["train"].target], settings["vocabulary_size"]
        )
        run.write(TOKENIZER, lambda path: path.write_bytes(tokenizer))
        model = translation_models.build(
            recipe, tokenizer, settings["dropout"], settings["small"], settings["positions"]
        )
    else:
        print(f"Resuming after epoch {len(run.epochs)}.")
    encoded = {
        part: translation_text.encode_pairs(model.tokenizer, sets[part])
        for part in ("train", "validation")
    }
    if not model.compiled:
        batches = translation_text.training_batches(
            encoded["train"], settings["batch_tokens"], np.random.default_rng(0)
        )
        model.compile(
            translation_models.optimizer(recipe, settings["epochs"] * len(batches)),
            keras_attention.losses.SmoothedCrossentropy(),
        )
    too_long = int(np.sum(encoded["train"].lengths > translation_text.LENGTHS[-1]))
    if too_long:
        limit = translation_text.LENGTHS[-1]
        print(f"{too_long:,} training pairs, longer than {limit} subwords, are left out.")
    trainer = Trainer(model, settings)
    print(
        f"Training {model.count_params():,} weights on {len(sets['train']):,} pairs. The first "
        "step of each length of sentences takes longest.",
        flush=True,
    )
    for epoch in range(len(run.epochs), settings["epochs"]):
        figures = trainer.train_epoch(encoded["train"], epoch)
        figures |= trainer.measure(encoded["validation"])
        run.finish_epoch(model, figures)
        print(_line(figures), flush=True)
    return _finish(run, model, sets, settings)


class Trainer:
    """The compiled steps of one model.

    Keras's `fit` would trace one program for all lengths, and pay for it at each step: here each of
    the few lengths has its own.
    """

    def __init__(self, model, settings):
        self.model = model
        self.batch_tokens = settings["batch_tokens"]
        self.seed = settings["seed"]
        # Before the programs are made, which must not create variables.
        model.optimizer.build(model.trainable_variables)
        # Two programs: the optimizer's, thousands of operations, is the same for all lengths.
        compiled = {"jit_compile": settings["jit"], "autograph": False}
        self._gradients = tf.function(self._loss_and_gradients, **compiled)
        self._apply = tf.function(self._apply_gradients, **compiled)
        self._losses = tf.function(self._sum_of_losses, autograph=False)
        # What a translation loses on average, without smoothing: a sum, to be divided at the end.
        self._plain = keras_attention.losses.SmoothedCrossentropy(0.0, reduction="sum")

    def _loss_and_gradients(self, source, given, wanted):
        model = self.model
        with tf.GradientTape() as tape:
            loss = model.loss(wanted, model((source, given), training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    def _apply_gradients(self, gradients):
        self.model.optimizer.apply(gradients, self.model.trainable_variables)

    def _sum_of_losses(self, source, given, wanted):
        return self._plain(wanted, self.model((source, given), training=False))

    def train_epoch(self, encoded, epoch):
        """What `figures.json` says of one epoch of training."""
        # Order and dropout depend on seed and epoch alone, so that a resumed run is the same run.
        rng = np.random.default_rng((self.seed, epoch))
        for variable in self.model.variables:
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=variable.shape))
        batches = translation_text.training_batches(encoded, self.batch_tokens, rng)
        progress = Progress(epoch + 1, len(batches))
        for indices, length in batches:
            rows = translation_text.rows_of(length, self.batch_tokens)
            (source, given), wanted = translation_text.batch(encoded, indices, length, rows)
            loss, gradients = self._gradients(source, given, wanted)
            self._apply(gradients)
            progress.add(float(loss), int(np.count_nonzero(wanted)))
        return progress.finish()

    def measure(self, encoded):
        """The mean loss of a token, by the moving mean of the weights."""
        total, tokens = 0.0, 0
        with averaged_weights(self.model):
            order = np.flatnonzero(encoded.lengths <= translation_text.LENGTHS[-1])
            for indices, length in translation_text.buckets(
                encoded.lengths, order, self.batch_tokens
            ):
                rows = translation_text.rows_of(length, self.batch_tokens)
                (source, given), wanted = translation_text.batch(encoded, indices, length, rows)
                total += float(self._losses(source, given, wanted))
                tokens += int(np.count_nonzero(wanted))
        return {
            "validation_loss": total / tokens,
            "validation_perplexity": float(np.exp(total / tokens)),
        }


class averaged_weights:
    """In this block the model has the moving mean of its weights, and after it what it had."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        optimizer = self.model.optimizer
        self.before = [np.array(v) for v in self.model.trainable_variables]
        optimizer.finalize_variable_values(self.model.trainable_variables)

    def __exit__(self, *exception):
        for variable, value in zip(self.model.trainable_variables, self.before, strict=True):
            variable.assign(value)


class Progress:
    """A line on the terminal that says how far an epoch is; elsewhere nothing is shown."""

    def __init__(self, epoch, steps):
        self.epoch = epoch
        self.steps = steps
        self.losses = []
        self.tokens = 0
        self.start = time.perf_counter()

    def add(self, loss, tokens):
        """Counts a step with its loss and its target tokens."""
        self.losses.append(loss)
        self.tokens += tokens
        if sys.stdout.isatty():
            done, seconds = len(self.losses), time.perf_counter() - self.start
            bar = "█" * (24 * done // self.steps)
            left = int(seconds / done * (self.steps - done))
            print(
                f"\repoch {self.epoch} [{bar:24}] {done}/{self.steps}  loss {loss:.3f}  "
                f"{self.tokens / seconds:,.0f} tokens/s  {left // 60}:{left % 60:02} left  ",
                end="" if done < self.steps else "\n",
                flush=True,
            )

    def finish(self):
        """What `figures.json` says of the epoch."""
        seconds = time.perf_counter() - self.start
        return {
            "epoch": self.epoch,
            "seconds": round(seconds, 2),
            "steps": self.steps,
            "tokens_per_second": round(self.tokens / seconds, 1),
            "train_loss": float(np.mean(self.losses)),
        }


def _line(figures):
    return (
        f"epoch {figures['epoch']}: train loss {figures['train_loss']:.3f}, validation loss "
        f"{figures['validation_loss']:.3f} (perplexity {figures['validation_perplexity']:.2f}), "
        f"{figures['seconds']:.1f} s, {figures['tokens_per_second']:,.0f} tokens/s"
    )


def _finish(run, model, sets, settings):
    """Writes what the run is for: the model, its translations, and how good they are."""
    model.optimizer.finalize_variable_values(model.trainable_variables)
    run.write(MODEL, lambda path: model.save(path, include_optimizer=False))
    facts = {}
    # The search comes last: its translations of the test sentences are what is kept.
    for beams, kind in ((1, "greedy_"), (settings["beams"], "")):
        translate = translation_prediction.Translate(model, beams)
        for part in ("validation", "test"):
            print(f"Translating the {part} sentences, {_beams(beams)} …", flush=True)
            start = time.perf_counter()
            said = translate(sets[part].source)
            metric = sacrebleu.metrics.BLEU()
            score = metric.corpus_score(said, [sets[part].target]).score
            facts[f"{part}_{kind}bleu"] = score
            facts[f"{part}_{kind}seconds"] = round(time.perf_counter() - start, 1)
            facts["bleu_signature"] = str(metric.get_signature())
    text = "".join(f"{sentence}\n" for sentence in said)
    run.write(TRANSLATIONS, lambda path: path.write_text(text, encoding="utf-8"))
    try:
        from examples import translation_pictures

        run.write(CURVES, lambda path: translation_pictures.draw_curves(path, run.figures))
        source = sets["test"].source[0]
        alignment = translate.align(source, said[0])
        run.write(ALIGNMENT, lambda path: translation_pictures.draw_alignment(path, *alignment))
    except ImportError as error:
        print(f"No pictures: {error} (pip install matplotlib)", file=sys.stderr)
    run.finish(**facts)
    return run.figures


def _beams(number):
    return "greedily" if number == 1 else f"{number} beams"


def _versions():
    return {
        "python": platform.python_version(),
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "sacrebleu": sacrebleu.__version__,
        "keras_attention": keras_attention.__version__,
    }


def _machine():
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "gpus": len(tf.config.list_physical_devices("GPU")),
    }
