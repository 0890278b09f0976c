"""Is a movie review positive? Trains attention models on IMDB, and labels new texts.

    python -m examples.imdb_classification [--model best|transformer|post] [--data-dir aclImdb] …
    python -m examples.imdb_classification --pretrained FOLDER [--lora RANK] …
    python -m examples.imdb_classification predict DIR "text" …

It runs on the backend of Keras: KERAS_BACKEND=tensorflow, jax or torch. Without --data-dir the
reviews come from TensorFlow Datasets, and if they are unavailable, from a small synthetic sample,
and the program says so. The folder --output gets model.keras, text.npz (the vocabulary),
figures.json and curves.png. If the program is interrupted, the same command resumes after the last
finished epoch.

With --pretrained the model and its tokens come from a folder of Hugging Face's format (config.json,
*.safetensors, tokenizer.json or tokenizer.model), and the tokens' file takes the place of text.npz.
It needs these packages: pip install safetensors tokenizers (sentencepiece for tokenizer.model).
"""

import argparse
import dataclasses
import importlib
import sys
from pathlib import Path

from examples import devices, model_files, pretrained, startup
from examples.argument_types import at_least, fraction, positive
from examples.errors import UsageError
from examples.imdb import data, recipes, subwords, text
from examples.run_directory import RunDirectory

# Keras and what imports it are imported where they are needed: they take seconds, and
# a mistake in the command line should not.

PROGRAM = "examples.imdb_classification"
MODELS = ("best", "transformer", "post")


def main(argv=None):
    """Runs the program and returns its exit status: 0, 2 for a user's mistake, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["predict"]:
            return predict(_parse_predict(argv[1:]))
        return train(_parse_train(argv))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "\nInterrupted. The same command goes on after the last finished epoch.",
            file=sys.stderr,
        )
        return 130


def train(options):
    """The program's main job."""
    settings = settings_of(options)
    output = options.output or Path("runs") / f"imdb-{settings['model']}"
    with RunDirectory(output, PROGRAM) as run:
        run.check(settings)
        if run.finished:
            print(f"The run in {output} is finished already.")
        else:
            packages = ()
            if options.pretrained:
                tokens = pretrained.check_folder(options.pretrained, subwords.READERS)
                settings["weights"] = pretrained.checksum(options.pretrained, tokens)
                packages = (subwords.READERS[tokens].package, "safetensors")
            _require(*packages)
            dataset = data.load(options.data_dir, options.sample)
            if dataset.warning:
                startup.shout(dataset.warning)

            from examples.imdb import training

            with devices.scope(options.devices):
                training.train(run, dataset, settings, options.devices)
        print(
            f"test accuracy {run.figures['test_accuracy']:.4f} after {settings['epochs']} epochs\n"
            f"on {recipes.describe_data(run.figures)}\n"
            f"in {output}: {', '.join(run.files())}"
        )
    return 0


def settings_of(options):
    """What the figures depend on, as far as it is known before data are read."""
    if options.pretrained:
        name, recipe = "pretrained", recipes.LORA if options.lora else recipes.PRETRAINED
    else:
        name = "post-positions" if options.positions else options.model or MODELS[0]
        recipe = recipes.RECIPES[name]
    if options.limit and recipe.limited_epochs:
        recipe = dataclasses.replace(recipe, epochs=recipe.limited_epochs)
    settings = {"model": name}
    for key in ("epochs", "batch_size", "max_length", "vocabulary_size"):
        given = getattr(options, key)
        settings[key] = getattr(recipe, key) if given is None else given
    for key in ("seed", "limit", "validation", "jit", "mixed_precision"):
        settings[key] = getattr(options, key)
    if options.pretrained:
        settings["pretrained"] = str(options.pretrained)
        settings["lora"] = options.lora
        settings["learning_rate"] = options.learning_rate or recipe.learning_rate
    settings["data_source"] = data.asked_for(options.data_dir, options.sample)
    return settings


def predict(options):
    """What the model of an earlier run predicts for some texts."""
    model_files.check_texts(options.texts, "a text")
    settings = model_files.finished_run(options.directory, PROGRAM)["settings"]
    file = options.directory / model_files.MODEL
    # First the model: a run of an earlier version has only that.
    model_files.check(file)
    if settings.get("pretrained"):
        _require(subwords.READERS[subwords.file_of(options.directory)].package)
        encoder = subwords.Encoder.load(options.directory, settings["max_length"])
    else:
        encoder = text.Encoder.load(options.directory / text.FILE)
        _require()

    from examples.imdb import prediction

    predictor = prediction.load(file, encoder)
    # An argument that is not UTF-8 reaches Python as surrogates, which cannot be printed.
    texts = [given.encode("utf-8", "replace").decode("utf-8") for given in options.texts]
    for found in predictor(texts):
        print(prediction.report(found))
    return 0


def _require(*packages):
    """Imports Keras on the backend that the user chose, and `packages`, or says what is missing."""
    try:
        with startup.quiet():
            for package in ("keras", *packages):
                importlib.import_module(package)
    except ImportError as error:
        needed = f" With --pretrained also: pip install {' '.join(packages)}" if packages else ""
        raise UsageError(
            f"{error}. This example needs Keras and a backend: pip install tensorflow, jax or "
            f"torch, and set KERAS_BACKEND to its name.{needed}"
        ) from None


def _parse_train(argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, help=f"default: {MODELS[0]}")
    parser.add_argument("--positions", action="store_true", help="for --model post: add positions")
    parser.add_argument(
        "--pretrained",
        type=Path,
        metavar="FOLDER",
        help="train the model of a folder of Hugging Face's format further, with its tokens",
    )
    parser.add_argument(
        "--lora",
        type=at_least(1),
        metavar="RANK",
        help="for --pretrained: train adapters of this rank and the head alone",
    )
    parser.add_argument(
        "--learning-rate",
        type=positive,
        metavar="RATE",
        help="for --pretrained: the highest; default: "
        f"{recipes.PRETRAINED.learning_rate}, with --lora {recipes.LORA.learning_rate}",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data-dir", type=Path, metavar="DIR", help="an unpacked aclImdb folder")
    source.add_argument(
        "--sample", action="store_true", help="use the synthetic sample, which is not IMDB"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: runs/imdb-MODEL[-positions]"
    )
    for name in ("epochs", "batch-size", "max-length"):
        parser.add_argument(f"--{name}", type=at_least(1), metavar="N", help="default: the model's")
    parser.add_argument(
        "--vocabulary-size",
        type=at_least(3),
        metavar="N",
        help="words, with padding and unknown; default: the model's",
    )
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--limit", type=at_least(2), metavar="N", help="train on N reviews and test on N"
    )
    parser.add_argument(
        "--validation",
        type=fraction,
        default=0.0,
        metavar="FRACTION",
        help="measure epochs on so much of the training reviews, and the test set only at the end",
    )
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    parser.add_argument(
        "--mixed-precision", action="store_true", help="compute in bfloat16, keep float32 weights"
    )
    devices.add_option(parser, at_least(1))
    options = parser.parse_args(argv)
    if options.positions and options.model != "post":
        parser.error("--positions is for --model post; the other models have theirs")
    names, problem = ("lora", "learning_rate"), "is for --pretrained"
    if options.pretrained:
        names, problem = ("model", "vocabulary_size"), "is not for --pretrained: its folder has one"
    for name in names:
        if getattr(options, name) is not None:
            parser.error(f"--{name.replace('_', '-')} {problem}")
    return options


def _parse_predict(argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM} predict",
        description="Label, probability and most attended words of each text.",
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the --output of a finished run"
    )
    parser.add_argument("texts", nargs="+", metavar="text")
    return parser.parse_args(argv)
