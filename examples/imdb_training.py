"""Training that can be interrupted at any moment, and what it leaves behind."""

import os
import platform
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import keras_attention
from examples import imdb_models, imdb_ngrams, imdb_text

MODEL = "model.keras"
CURVES = "curves.png"


def train(run, name, dataset, settings):
    """Trains the model `name`, or resumes it, and returns the figures.

    After each epoch the model is measured on the test reviews, as the post does, or with
    `validation` on training reviews held out for it. Nothing is chosen by either: the epochs are as
    many as were asked for, and the model that is kept is the last.

    Args:
        run: the `RunDirectory` to write to.
        name: the recipe's.
        dataset: the `imdb_data.Dataset`.
        settings: the options of the command line that the figures depend on.
    """
    recipe = imdb_models.RECIPES[name]
    train_set, test_set = (
        reviews.limited(settings["limit"], settings["seed"])
        for reviews in (dataset.train, dataset.test)
    )
    measured_on, measured = "test", test_set
    if settings["validation"]:
        train_set, measured = train_set.split(settings["validation"], settings["seed"])
        measured_on = "validation"
    run.begin(
        {"model": name, **settings, "data": [train_set.checksum(), test_set.checksum()]},
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
        machine=_machine(),
    )
    if run.figures["finished"]:
        print(f"The run in {run.path} is finished already.")
        return run.figures

    keras.utils.set_random_seed(settings["seed"])
    if settings["mixed_precision"]:
        keras.config.set_dtype_policy("mixed_bfloat16")
    print("Counting words …", flush=True)
    vectorizer = imdb_text.learn_vocabulary(train_set.texts, settings["vocabulary_size"])
    # Places that no review reaches would be computed for nothing.
    max_length = imdb_text.longest(train_set.texts, settings["max_length"])
    preprocessor = imdb_text.build_preprocessor(vectorizer, recipe.window, max_length)
    sizes = imdb_text.vocabulary_size(vectorizer)
    if recipe.ngrams:
        print("Counting n-grams …", flush=True)
        ids = imdb_text.encode(preprocessor, train_set.texts)
        preprocessor, sizes = imdb_ngrams.extend(
            preprocessor, ids, recipe.ngrams, sizes, recipe.min_reviews
        )
    x, y = _encode(preprocessor, train_set)
    measured = _encode(preprocessor, measured)
    classifier = run.load_checkpoint(keras.models.load_model)
    if classifier is None:
        steps = settings["epochs"] * -(-len(x) // settings["batch_size"])
        classifier = build_classifier(recipe, x.shape[1:], sizes, steps, settings["jit"])
    else:
        print(f"Resuming after epoch {len(run.epochs)}.")
    for epoch in range(len(run.epochs), settings["epochs"]):
        figures = _train_epoch(classifier, x, y, epoch, settings)
        figures |= _measure(classifier, *measured, measured_on)
        run.finish_epoch(classifier, figures)
        print(_line(figures, measured_on), flush=True)
    return _finish(run, preprocessor, classifier, test_set)


def _encode(preprocessor, reviews):
    """What the classifier takes, (n, max_length, …), and what it should say, (n, 1)."""
    return imdb_text.encode(preprocessor, reviews.texts), reviews.labels[:, None]


def build_classifier(recipe, shape, sizes, steps, jit):
    """The compiled model from numbers (B, *shape) to probabilities."""
    ids = keras.Input(shape, dtype="int32", name="ids")
    classifier = keras.Model(ids, recipe.build(ids, sizes), name="classifier")
    classifier.compile(
        recipe.optimizer(steps), "binary_crossentropy", metrics=["accuracy"], jit_compile=jit
    )
    return classifier


def _train_epoch(classifier, x, y, epoch, settings):
    # Order and dropout depend on seed and epoch alone, so that a resumed run is the same run.
    rng = np.random.default_rng((settings["seed"], epoch))
    order = rng.permutation(len(x))
    for variable in classifier.variables:
        if variable.name == "seed_generator_state":
            variable.assign(rng.integers(2**31, size=variable.shape))
    start = time.perf_counter()
    history = classifier.fit(
        x[order],
        y[order],
        batch_size=settings["batch_size"],
        shuffle=False,
        initial_epoch=epoch,
        epochs=epoch + 1,
        verbose=1 if sys.stdout.isatty() else 0,
    ).history
    seconds = time.perf_counter() - start
    return {
        "epoch": epoch + 1,
        "seconds": round(seconds, 2),
        "train_loss": history["loss"][0],
        "train_accuracy": history["accuracy"][0],
    }


def _measure(classifier, x, y, name):
    loss, accuracy = classifier.evaluate(x, y, batch_size=256, verbose=0)
    return {f"{name}_loss": loss, f"{name}_accuracy": accuracy}


def _line(figures, measured_on):
    return (
        f"epoch {figures['epoch']}: train accuracy {figures['train_accuracy']:.4f}, "
        f"{measured_on} accuracy {figures[f'{measured_on}_accuracy']:.4f}, "
        f"{figures['seconds']:.1f} s"
    )


def _finish(run, preprocessor, classifier, test_set):
    """Writes what the run is for: the model that reads strings, the curves, the last figures."""
    text = keras.Input(shape=(), dtype="string", name="text")
    model = keras.Model(text, classifier(preprocessor(text)), name="imdb_classification")
    run.write(MODEL, lambda path: model.save(path, include_optimizer=False))
    test = {name: run.epochs[-1].get(name) for name in ("test_loss", "test_accuracy")}
    if None in test.values():
        test = _measure(classifier, *_encode(preprocessor, test_set), "test")
    try:
        run.write(CURVES, lambda path: _plot(run.figures, path))
    except ImportError as error:
        print(f"No {CURVES}: {error} (pip install matplotlib)", file=sys.stderr)
    run.finish(**test)
    return run.figures


def _plot(figures, path):
    """The curves of loss and accuracy over the epochs, as a picture."""
    from matplotlib.figure import Figure

    epochs = figures["epochs"]
    numbers = [epoch["epoch"] for epoch in epochs]
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.suptitle(f"{figures['settings']['model']}: {describe_data(figures)}")
    for axes, quantity in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for name in ("train", "validation", "test"):
            if f"{name}_{quantity}" in epochs[0]:
                values = [epoch[f"{name}_{quantity}"] for epoch in epochs]
                axes.plot(numbers, values, marker="o", label=name)
        axes.set(xlabel="epoch", title=quantity, xticks=numbers)
        axes.legend()
    figure.savefig(path, dpi=150)


def describe_data(figures):
    """What the figures were measured on, in one line that never passes for more than it is."""
    sizes = figures["sizes"]
    limit = figures["settings"]["limit"]
    limited = "" if limit is None else f", limited to {limit:,}"
    return (
        f"{figures['dataset']}{limited}: {sizes['train']:,} training and {sizes['test']:,} "
        "test reviews"
    )


def _versions():
    return {
        "python": platform.python_version(),
        "keras": keras.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "keras_attention": keras_attention.__version__,
    }


def _machine():
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "gpus": len(tf.config.list_physical_devices("GPU")),
    }
