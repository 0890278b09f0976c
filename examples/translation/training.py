"""Training that can be interrupted at any moment, and what it leaves behind."""

import itertools
import sys
import time

import keras
import numpy as np

import keras_attention
from examples import devices as several
from examples import environment, model_files
from examples.errors import UsageError
from examples.progress import Progress
from examples.translation import models, prediction, recipes, text
from examples.translation.scores import scores

TOKENIZER = "tokenizer.spm"
CURVES = "curves.png"
ALIGNMENT = "alignment.png"
TRANSLATIONS = "test.txt"
# Everywhere but on PyTorch, a program is compiled for each shape of a batch.
FEW_SHAPES = keras.backend.backend() != "torch"


def train(run, dataset, settings, devices=1, model_parallel=1):
    """Trains the model, or resumes it, and returns the results.

    After each epoch the loss of the validation pairs is measured. Nothing is chosen by it: the
    epochs are as many as requested, and the model that is kept is the last, with the moving
    mean of its weights. That translates the validation and the test sentences at the end.

    Args:
        run: the `RunDirectory` to write to.
        dataset: the `data.Dataset`.
        settings: the options of the command line that the results depend on.
        devices: how many share each batch.
        model_parallel: how many of them share the weights.
    """
    sets = {
        part: getattr(dataset, part).limited(settings["limit"], settings["seed"])
        for part in ("train", "validation", "test")
    }
    run.begin(
        {**settings, "data": [pairs.checksum() for pairs in sets.values()]},
        dataset=dataset.name,
        sizes={part: len(pairs) for part, pairs in sets.items()},
        languages=list(dataset.languages),
        versions=environment.versions("sentencepiece", "sacrebleu"),
        machine=environment.machine(),
    )
    tokenizer = None
    if not run.epochs:
        print("Learning subwords …", flush=True)
        tokenizer = text.learn_tokenizer(
            [*sets["train"].source, *sets["train"].target], settings["vocabulary_size"]
        )
        run.write(TOKENIZER, lambda path: path.write_bytes(tokenizer))

    def make():
        keras.utils.set_random_seed(settings["seed"])
        if tokenizer is None:
            return run.load_checkpoint(model_files.load)
        recipe = recipes.RECIPES[settings["model"]]
        return models.build(
            recipe, tokenizer, settings["dropout"], settings["small"], settings["positions"]
        )

    def layouts(mesh):
        found = keras_attention.distribution.layout_map(mesh, make())
        # The next model's weights have the same names.
        keras.utils.clear_session()
        return found

    with several.scope(devices, layouts, model_parallel):
        return _train(run, make(), sets, settings, devices)


def _train(run, model, sets, settings, devices):
    """Trains a model, new or from a checkpoint, and returns the figures."""
    if run.epochs:
        print(f"Resuming after epoch {len(run.epochs)}.")
    encoded = {
        part: text.encode_pairs(model.tokenizer, sets[part]) for part in ("train", "validation")
    }
    _check_lengths(encoded)
    if not model.compiled:
        _compile(model, encoded["train"], settings)
    print(
        f"Training {model.count_params():,} weights on {len(sets['train']):,} pairs. The first "
        "steps take longest.",
        flush=True,
    )
    # All in one call: at its end `fit` gives the model the moving mean of its weights.
    batches = TrainingBatches(encoded["train"], settings, devices)
    progress = Progress(batches)
    model.fit(
        batches,
        initial_epoch=len(run.epochs),
        epochs=settings["epochs"],
        shuffle=False,
        verbose=0,
        callbacks=[progress, Epochs(run, batches, progress, encoded["validation"])],
    )
    return _finish(run, model, sets, settings)


def _check_lengths(encoded):
    longest = text.LENGTHS[-1]
    for part, pairs in encoded.items():
        used = len(pairs.not_too_long())
        if not used:
            raise UsageError(f"All {part} pairs are longer than {longest} subwords.")
        if used < len(pairs):
            print(
                f"{len(pairs) - used:,} {part} pairs, longer than {longest} subwords, are left out."
            )


def _compile(model, encoded, settings):
    steps = settings["epochs"] * len(
        text.training_batches(
            encoded, settings["batch_tokens"], np.random.default_rng(0), FEW_SHAPES
        )
    )
    recipe = recipes.RECIPES[settings["model"]]
    optimizer = models.optimizer(
        settings["learning_rate"], recipe.warmup_steps, settings["schedule"], steps
    )
    # Before the first step, which would be compiled twice to make variables.
    optimizer.build(model.trainable_variables)
    model.compile(
        optimizer,
        keras_attention.losses.SmoothedCrossentropy(),
        jit_compile=settings["jit"] or keras.backend.backend() == "jax",
    )


class Batches(keras.utils.PyDataset):
    """`text.Batch`es as what `fit` and `evaluate` take, with rows for all devices."""

    def __init__(self, encoded, batches, devices=1):
        super().__init__()
        self.encoded, self.devices = encoded, devices
        self.batches = _varied_first(batches)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        batch = self.batches[index]
        return batch.arrays(self.encoded, several.rows(len(batch.indices), self.devices))

    @property
    def rows(self):
        """How many rows all batches have."""
        return sum(several.rows(len(batch.indices), self.devices) for batch in self.batches)

    @property
    def tokens(self):
        """How many target tokens each batch has."""
        return [int(self.encoded.sides[1, batch.indices].sum()) for batch in self.batches]


def _varied_first(batches):
    """The batches, with two first that differ in each length in which any do.

    On TensorFlow, Keras takes for constant what the first two batches have in common.
    """
    lengths = [(batch.source_length, batch.target_length) for batch in batches]
    varying = [len(set(side)) > 1 for side in zip(*lengths, strict=True)]
    for first, second in itertools.combinations(range(len(batches)), 2):
        differ = [a != b for a, b in zip(lengths[first], lengths[second], strict=True)]
        if differ == varying:
            rest = [i for i in range(len(batches)) if i not in (first, second)]
            return [batches[i] for i in (first, second, *rest)]
    return batches


class TrainingBatches(Batches):
    """The batches of one epoch, in an order that depends on the seed and the epoch alone."""

    def __init__(self, encoded, settings, devices=1):
        self.settings = settings
        super().__init__(encoded, self._of(encoded, epoch=0), devices)

    def draw(self, epoch):
        """Makes them those of an epoch, counted from 0."""
        self.batches = _varied_first(self._of(self.encoded, epoch))

    def _of(self, encoded, epoch):
        rng = np.random.default_rng((self.settings["seed"], epoch))
        return text.training_batches(encoded, self.settings["batch_tokens"], rng, FEW_SHAPES)


class Epochs(keras.callbacks.Callback):
    """What an epoch begins and ends with: its batches and its dropout, its figures, its checkpoint.

    Args:
        run: the `RunDirectory` to write to.
        batches: the `TrainingBatches`.
        progress: the `Progress`.
        validation: the encoded pairs that are measured on.
    """

    def __init__(self, run, batches, progress, validation):
        super().__init__()
        self.run = run
        self.batches = batches
        self.progress = progress
        self.validation = validation

    def on_epoch_begin(self, epoch, logs=None):
        self.batches.draw(epoch)
        # Of the epoch alone too, so that a resumed run is the same run.
        rng = np.random.default_rng((self.batches.settings["seed"], epoch, 1))
        for variable in self.model.variables:
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=variable.shape))

    def on_epoch_end(self, epoch, logs=None):
        figures = {
            "epoch": epoch + 1,
            "seconds": round(self.progress.seconds, 2),
            "steps": len(self.batches),
            "tokens_per_second": round(sum(self.batches.tokens) / self.progress.seconds, 1),
            "train_loss": logs["loss"],
            **measure(
                self.model,
                self.validation,
                self.batches.settings["batch_tokens"],
                self.batches.devices,
            ),
        }
        self.run.finish_epoch(self.model, figures)
        print(_line(figures), flush=True)


def measure(model, encoded, batch_tokens, devices=1):
    """The mean loss of a token, by the moving mean of the weights."""
    order = encoded.not_too_long()
    batches = Batches(encoded, text.batches(encoded, order, batch_tokens, FEW_SHAPES), devices)
    with averaged_weights(model):
        of_row = model.evaluate(batches, verbose=0)
    loss = of_row * batches.rows / int(encoded.sides[1, order].sum())
    return {"validation_loss": loss, "validation_perplexity": float(np.exp(loss))}


class averaged_weights:
    """In this block the model has the moving mean of its weights, and after it what it had."""

    def __init__(self, model):
        self.model = model

    def __enter__(self):
        variables = self.model.trainable_variables
        self.before = [keras.ops.copy(variable) for variable in variables]
        self.model.optimizer.finalize_variable_values(variables)
        for variable in variables:
            # On JAX it is the optimizer's own array otherwise, which `evaluate` would delete.
            variable.assign(keras.ops.copy(variable))

    def __exit__(self, *exception):
        for variable, value in zip(self.model.trainable_variables, self.before, strict=True):
            variable.assign(value)


def _line(figures):
    return (
        f"epoch {figures['epoch']}: train loss {figures['train_loss']:.3f}, validation loss "
        f"{figures['validation_loss']:.3f} (perplexity {figures['validation_perplexity']:.2f}), "
        f"{figures['seconds']:.1f} s, {figures['tokens_per_second']:,.0f} tokens/s"
    )


def _finish(run, model, sets, settings):
    """Writes what the run is for: the model, its translations, and how good they are."""
    model.optimizer.finalize_variable_values(model.trainable_variables)
    run.write(model_files.MODEL, lambda path: model.save(path, include_optimizer=False))
    language = run.figures["languages"][1]
    facts = {}
    greedy = searched = prediction.Translate(model, beams=1)
    if settings["beams"] > 1:
        searched = prediction.Translate(model, settings["beams"])
    # The search comes last: its translations of the test sentences are what is kept.
    for translate, kind in ((greedy, "greedy_"), (searched, "")):
        for part in ("validation", "test"):
            print(f"Translating the {part} sentences, {_beams(translate.beams)} …", flush=True)
            start = time.perf_counter()
            translated = translate(sets[part].source)
            seconds = time.perf_counter() - start
            found, signatures = scores(translated, sets[part].target, language)
            facts |= {f"{part}_{kind}{name}": score for name, score in found.items()}
            facts |= {f"{name}_signature": signature for name, signature in signatures.items()}
            facts[f"{part}_{kind}seconds"] = round(seconds, 1)
    translations = "".join(f"{sentence}\n" for sentence in translated)
    run.write(TRANSLATIONS, lambda path: path.write_text(translations, encoding="utf-8"))
    try:
        from examples.translation import pictures

        run.write(CURVES, lambda path: pictures.draw_curves(path, run.figures))
        source = sets["test"].source[0]
        alignment = searched.align(source, translated[0])
        run.write(ALIGNMENT, lambda path: pictures.draw_alignment(path, *alignment))
    except ImportError as error:
        print(f"No pictures: {error} (pip install matplotlib)", file=sys.stderr)
    run.finish(**facts)
    return run.figures


def _beams(number):
    return "greedily" if number == 1 else f"{number} beams"
