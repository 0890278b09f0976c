"""Training that can be interrupted at any moment, and what it leaves behind."""

import os
import platform
import sys
import time
import zipfile

import keras
import numpy as np

import keras_attention
from examples import devices as several
from examples import model_files
from examples.imdb import models, ngrams, pretrained, recipes, subwords
from examples.imdb.text import Encoder, pad, padded_length

CURVES = "curves.png"
# What the file of a model says of itself, for those who load it elsewhere.
NEEDS = "The package keras_attention, imported before the model is loaded.\n"


def train(run, dataset, settings, devices=1):
    """Trains a model, or resumes it, and returns the results.

    After each epoch the model is measured on the test reviews, as the post does, or with
    `validation` on training reviews held out for it. Nothing is chosen by either: the epochs are as
    many as requested, and the model that is kept is the last.

    Args:
        run: the `RunDirectory` to write to.
        dataset: the `data.Dataset`.
        settings: the options of the command line that the results depend on.
        devices: how many share each batch.
    """
    train_set, test_set = (
        reviews.limited(settings["limit"], settings["seed"])
        for reviews in (dataset.train, dataset.test)
    )
    measured_on, measured = "test", test_set
    if settings["validation"]:
        train_set, measured = train_set.split(settings["validation"], settings["seed"])
        measured_on = "validation"
    keras.utils.set_random_seed(settings["seed"])
    if settings["mixed_precision"]:
        keras.config.set_dtype_policy("mixed_bfloat16")
    # Before anything is written: a folder may be wrong.
    made = _from_folder(train_set, settings) if settings.get("pretrained") else None
    run.begin(
        {**settings, "data": [train_set.checksum(), test_set.checksum()]},
        dataset=dataset.source,
        full_imdb=dataset.is_full_imdb and not settings["limit"] and not settings["validation"],
        sizes={
            "train": len(train_set),
            measured_on: len(measured),
            "test": len(test_set),
            "train_available": len(dataset.train),
            "test_available": len(dataset.test),
        },
        versions=_versions(),
        machine={"cores": os.cpu_count(), "architecture": platform.machine()},
    )
    if made is None:
        made = _from_scratch(run, train_set, settings)
    else:
        run.load_checkpoint(made[-1].load)
    encoder, train_rows, classifier, saved = made
    measured_rows = [encoder(text) for text in measured.texts]
    if run.epochs:
        print(f"Resuming after epoch {len(run.epochs)}.")
    for epoch in range(len(run.epochs), settings["epochs"]):
        figures = train_epoch(
            classifier, train_rows, train_set.labels, encoder, epoch, settings, devices
        )
        figures |= measure(classifier, measured_rows, measured.labels, encoder, measured_on)
        run.finish_epoch(saved, figures)
        print(_line(figures, measured_on), flush=True)
    return _finish(run, encoder, classifier, test_set)


def _from_folder(train_set, settings):
    """The encoder of texts, the training rows, the classifier, and what checkpoints save of it."""
    folder = settings["pretrained"]
    encoder = subwords.Encoder.load(folder, settings["max_length"])
    classifier = pretrained.build(folder, encoder, settings["lora"])
    rows = [encoder(text) for text in train_set.texts]
    optimizer = pretrained.optimizer(settings["learning_rate"], _steps(rows, settings))
    compile_classifier(classifier, optimizer, settings["jit"])
    return encoder, rows, classifier, pretrained.State(classifier)


def _from_scratch(run, train_set, settings):
    """The same of a new model, or of the last checkpoint, which saves the classifier as it is."""
    recipe = recipes.RECIPES[settings["model"]]
    print("Counting words …", flush=True)
    encoder = Encoder.learn(
        train_set.texts, recipe, settings["vocabulary_size"], settings["max_length"]
    )
    rows = [encoder(text) for text in train_set.texts]
    classifier = run.load_checkpoint(keras.models.load_model)
    if classifier is None:
        ratios = ngrams.log_ratios(rows, train_set.labels, encoder.size) if recipe.ngrams else None
        classifier = models.build(recipe, encoder.size, ratios)
        optimizer = models.optimizer(recipe, _steps(rows, settings))
        compile_classifier(classifier, optimizer, settings["jit"])
    return encoder, rows, classifier, classifier


def _steps(rows, settings):
    """How many steps the whole training has."""
    return settings["epochs"] * -(-len(rows) // settings["batch_size"])


def compile_classifier(classifier, optimizer, jit=False):
    """Readies the model for training; JAX always compiles its steps."""
    jit = jit or keras.backend.backend() == "jax"
    classifier.compile(optimizer, "binary_crossentropy", metrics=["accuracy"], jit_compile=jit)


def train_epoch(classifier, rows, labels, encoder, epoch, settings, devices=1):
    """Trains the classifier once on each of the reviews.

    Devices need batches that they can share: up to so many reviews, less one, count twice.
    """
    # Order and dropout depend on seed and epoch alone, so that a resumed run is the same run.
    seeds = (settings["seed"], epoch)
    rng = np.random.default_rng(seeds)
    # On PyTorch, dropout draws from PyTorch's global generator.
    keras.utils.set_random_seed(int(np.random.SeedSequence(seeds).generate_state(1)[0] >> 1))
    for variable in classifier.variables:
        if variable.name == "seed_generator_state":
            variable.assign(rng.integers(2**31, size=variable.shape))
    start, processor_start = time.perf_counter(), time.process_time()
    chosen = batches(rows, settings["batch_size"], rng)
    if devices > 1:
        # `train_on_batch` does not share a batch among the devices of TensorFlow.
        shared = SharedBatches(rows, labels, encoder, chosen, devices)
        history = classifier.fit(shared, shuffle=False, verbose=0).history
        loss, accuracy = history["loss"][0], history["accuracy"][0]
    else:
        totals = np.zeros(2)
        # `fit` takes the shapes of batches from the first two, and here they differ.
        for indices in chosen:
            classifier.reset_metrics()
            result = classifier.train_on_batch(
                _padded(rows, indices, encoder), labels[indices, None], return_dict=True
            )
            totals += len(indices) * np.array([result["loss"], result["accuracy"]], "float64")
        loss, accuracy = (totals / len(rows)).tolist()
    return {
        "epoch": epoch + 1,
        "seconds": round(time.perf_counter() - start, 2),
        "processor_seconds": round(time.process_time() - processor_start, 2),
        "train_loss": loss,
        "train_accuracy": accuracy,
    }


def batches(rows, size, rng, pool=50):
    """The indices of batches: at random, but each of reviews of about the same length."""
    # `pool` batches are drawn, and their reviews sorted: with them goes most of the padding.
    lengths = np.array([len(row) for row in rows])
    order = rng.permutation(len(rows))
    batches = []
    for start in range(0, len(order), pool * size):
        drawn = order[start : start + pool * size]
        drawn = drawn[np.argsort(lengths[drawn], kind="stable")]
        batches += [drawn[i : i + size] for i in range(0, len(drawn), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


class SharedBatches(keras.utils.PyDataset):
    """Batches for several devices, each with rows for all of them."""

    def __init__(self, rows, labels, encoder, batches, devices):
        super().__init__()
        self.rows, self.labels, self.encoder = rows, labels, encoder
        self.batches = [np.resize(b, several.rows(len(b), devices)) for b in batches]
        # On TensorFlow, Keras takes for constant what the first two batches have in common.
        lengths = [max(len(rows[i]) for i in batch) for batch in self.batches]
        first = [int(np.argmin(lengths)), int(np.argmax(lengths))]
        rest = [n for n in range(len(lengths)) if n not in first]
        self.batches = [self.batches[n] for n in dict.fromkeys([*first, *rest])]

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        indices = self.batches[index]
        return _padded(self.rows, indices, self.encoder), self.labels[indices, None]


def _padded(rows, indices, encoder):
    chosen = [rows[i] for i in indices]
    return pad(chosen, padded_length(max(map(len, chosen)), encoder.max_length))


def probabilities(classifier, rows, encoder, size=256):
    """What the classifier gives for rows of numbers, (n,)."""
    order = np.argsort([len(row) for row in rows], kind="stable")
    predicted = np.empty(len(rows))
    for start in range(0, len(order), size):
        indices = order[start : start + size]
        # TensorFlow's devices each compute them all.
        found = classifier.predict_on_batch(_padded(rows, indices, encoder))[: len(indices), 0]
        predicted[indices] = found
    return predicted


def measure(classifier, rows, labels, encoder, name):
    """Loss and accuracy on some reviews."""
    predicted = probabilities(classifier, rows, encoder)
    right = np.clip(np.where(labels == 1, predicted, 1 - predicted), 1e-7, 1)
    return {
        f"{name}_loss": float(-np.mean(np.log(right))),
        f"{name}_accuracy": float(np.mean((predicted > 0.5) == (labels == 1))),
    }


def _line(figures, measured_on):
    return (
        f"epoch {figures['epoch']}: train accuracy {figures['train_accuracy']:.4f}, "
        f"{measured_on} accuracy {figures[f'{measured_on}_accuracy']:.4f}, "
        f"{figures['seconds']:.1f} s"
    )


def _finish(run, encoder, classifier, test_set):
    """Writes what the run is for: the model, its encoder of texts, the curves, the last results."""
    run.write(model_files.MODEL, lambda path: _save(classifier, path))
    run.write(encoder.file, encoder.save)
    test = {name: run.epochs[-1].get(name) for name in ("test_loss", "test_accuracy")}
    if None in test.values():
        rows = [encoder(text) for text in test_set.texts]
        test = measure(classifier, rows, test_set.labels, encoder, "test")
    try:
        run.write(CURVES, lambda path: _plot(run.figures, path))
    except ImportError as error:
        print(f"No {CURVES}: {error} (pip install matplotlib)", file=sys.stderr)
    run.finish(**test)
    return run.figures


def _save(classifier, path):
    # A new model of the same layers, without the optimizer, which may be of adapters.
    keras.Model(classifier.input, classifier.output, name=classifier.name).save(path)
    # Keras leaves members alone that are not its own.
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("needs.txt", NEEDS)


def _plot(figures, path):
    """The curves of loss and accuracy over the epochs, as a picture."""
    from matplotlib.figure import Figure

    epochs = figures["epochs"]
    numbers = [epoch["epoch"] for epoch in epochs]
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(f"{figures['settings']['model']}: {recipes.describe_data(figures)}")
    for axes, quantity in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for name in ("train", "validation", "test"):
            if f"{name}_{quantity}" in epochs[0]:
                values = [epoch[f"{name}_{quantity}"] for epoch in epochs]
                axes.plot(numbers, values, marker="o", label=name)
        axes.set(xlabel="epoch", title=quantity, xticks=numbers)
        axes.legend()
    figure.savefig(path, dpi=150)


def _versions():
    backend = keras.backend.backend()
    return {
        "python": platform.python_version(),
        "keras": keras.__version__,
        "backend": backend,
        backend: sys.modules[backend].__version__,
        "numpy": np.__version__,
        "keras_attention": keras_attention.__version__,
    }
