"""Translates sentences: trains attention models on pairs of them, and uses them.

    python -m examples.translation [--data-dir multi30k] [--model transformer|bahdanau|luong] …
    python -m examples.translation translate DIR "sentence" …

--data-dir is a folder with train.en.gz, train.de.gz, val.… and test_2016_flickr.… (or test.…), one
sentence a line, with .gz or without. Without it the pairs come from TensorFlow Datasets
(ted_hrlr_translate, Portuguese to English), and if these are unavailable, from a small synthetic
sample, and the program says so. The folder --output gets model.keras (with the subwords
inside), tokenizer.spm, figures.json, test.txt (the translated test sentences), curves.png and
alignment.png. If the program is interrupted, the same command resumes after the last finished
epoch.

It runs on Keras with TensorFlow, JAX or PyTorch, and needs these packages:
pip install filelock sentencepiece sacrebleu sacremoses matplotlib
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

from examples import devices, model_files, startup
from examples.argument_types import at_least, fraction, positive
from examples.errors import UsageError
from examples.run_directory import RunDirectory
from examples.translation import data, recipes

# Keras and what imports it are imported where they are needed: that takes seconds, and a mistake in
# the command line should not.

PROGRAM = "examples.translation"
MODELS = tuple(recipes.RECIPES)
SCHEDULES = ("inverse-sqrt", "cosine")
# Options whose defaults are the model's.
OF_THE_MODEL = (
    "epochs",
    "batch_tokens",
    "vocabulary_size",
    "dropout",
    "positions",
    "learning_rate",
    "schedule",
)
# What the example needs besides Keras and a backend. The extra `translation` has all of it.
PACKAGES = ("filelock", "sentencepiece", "sacrebleu", "sacremoses", "matplotlib")
POSITIONS = ("shaw", "rotary", "sin-cos")


def main(argv=None):
    """Runs the program and returns its exit status: 0, 2 for a user's mistake, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["translate"]:
            return translate(_parse_translate(argv[1:]))
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
    if options.positions and options.model != "transformer":
        raise UsageError(f"--positions is for the transformer. --model is {options.model}.")
    output = options.output or Path("runs") / f"translation-{options.model}"
    where = {name: getattr(options, name) for name in ("data_dir", "source", "target", "sample")}
    recipe = recipes.RECIPES[options.model]
    settings = {
        key: getattr(recipe, key) if getattr(options, key) is None else getattr(options, key)
        for key in OF_THE_MODEL
    }
    for key in ("model", "small", "seed", "limit", "beams", "jit"):
        settings[key] = getattr(options, key)
    settings["languages"] = data.languages(**where)
    settings["data_source"] = data.asked_for(options.data_dir, options.sample)
    with RunDirectory(output, PROGRAM) as run:
        run.check(settings)
        if run.finished:
            print(f"The run in {output} is finished already.")
        else:
            _require("sacrebleu", "sacremoses")
            dataset = data.load(**where)
            if dataset.warning:
                startup.shout(dataset.warning)

            from examples.translation import training

            training.train(run, dataset, settings, options.devices, options.model_parallel)
        print(report(run.figures))
        print(f"in {output}: {', '.join(run.files())}")
    return 0


def report(figures):
    """What a finished run has found, as text."""
    settings, sizes = figures["settings"], figures["sizes"]
    lines = [
        f"after {settings['epochs']} epochs, BLEU of the test sentences with {settings['beams']} "
        "beams (greedily; of the validation sentences):"
    ]
    for name, meaning in (
        ("bleu", "cased, detokenized"),
        ("tokenized_bleu", "lowercased, normalized, tokenized"),
    ):
        # Runs of earlier versions have the first alone.
        if f"test_{name}" in figures:
            test, greedy, validation = (
                f"{figures[f'{part}_{name}']:.2f}" for part in ("test", "test_greedy", "validation")
            )
            lines += [
                f"  {test} ({greedy}; {validation})  {meaning}",
                f"    {figures[f'{name}_signature']}",
            ]
    languages = " to ".join(figures.get("languages") or settings["languages"])
    lines.append(
        f"on {figures['dataset']}, {languages}: {sizes['train']:,} training and "
        f"{sizes['test']:,} test pairs"
    )
    return "\n".join(lines)


def translate(options):
    """What the model of an earlier run makes of some sentences."""
    model_files.check_texts(options.sentences, "a sentence")
    model_files.finished_run(options.directory, PROGRAM)
    model_files.check(options.directory / model_files.MODEL)
    _require()

    from examples.translation import pictures, prediction
    from examples.translation.text import words

    model = prediction.load(options.directory, PROGRAM)
    # An argument that is not UTF-8 reaches Python as surrogates, which no tokenizer takes.
    sentences = [text.encode("utf-8", "replace").decode("utf-8") for text in options.sentences]
    understood = []
    for sentence in sentences:
        if not words(sentence):
            problem = "has no words"
        elif not model.tokenizer.knows(sentence):
            problem = "has no words that the model has seen"
        else:
            understood.append(sentence)
            continue
        print(f"{sentence!r} {problem}, so it is not translated.", file=sys.stderr)
    rows = max(1, min(len(understood), prediction.ROWS))
    translator = prediction.Translate(model, options.beams, rows)
    found = dict(zip(understood, translator(understood), strict=True))
    for sentence in sentences:
        # A line for each sentence, an empty one for what is not translated.
        print(found.get(sentence, ""))
    if options.picture and understood:
        alignment = translator.align(understood[0], found[understood[0]])
        try:
            pictures.draw_alignment(options.picture, *alignment)
        except OSError as error:
            raise UsageError(f"{options.picture} cannot be written: {error.strerror}.") from None
    return 0


def _require(*packages):
    """Imports Keras, its backend and `packages`, or says what is missing."""
    # TensorFlow turns oneDNN's products on by itself on some CPUs only. Without them the
    # step of a small Transformer uses one core, and takes twice as long.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    try:
        with startup.quiet():
            for package in ("keras", "sentencepiece", *packages):
                importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"{error}. This example needs Keras on TensorFlow, JAX or PyTorch, as KERAS_BACKEND "
            f"says, and: pip install {' '.join(PACKAGES)}"
        ) from None


def _parse_train(argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help=f"default: {MODELS[0]}")
    pairs = parser.add_mutually_exclusive_group()
    pairs.add_argument("--data-dir", type=Path, metavar="DIR", help="a folder of pairs")
    pairs.add_argument("--sample", action="store_true", help="use the synthetic sample")
    for name, languages in (("source", "en, or pt"), ("target", "de, or en")):
        parser.add_argument(
            f"--{name}",
            metavar="LANGUAGE",
            help=f"default: {languages} with TensorFlow Datasets",
        )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: runs/translation-MODEL"
    )
    parser.add_argument("--small", action="store_true", help="a small model, for a quick try")
    for name, minimum, meaning in (
        ("epochs", 1, "rounds over the pairs"),
        ("batch-tokens", 64, "subwords of a batch, with padding"),
        ("vocabulary-size", 400, "subwords of both languages together, at most"),
    ):
        parser.add_argument(
            f"--{name}",
            type=at_least(minimum),
            metavar="N",
            help=f"{meaning}; default: the model's",
        )
    parser.add_argument("--dropout", type=fraction, metavar="RATE", help="default: the model's")
    parser.add_argument(
        "--learning-rate",
        type=positive,
        metavar="RATE",
        help="the highest; default: the model's",
    )
    parser.add_argument(
        "--schedule",
        choices=SCHEDULES,
        help="of the learning rate, after its rise; cosine ends at 0; default: the model's",
    )
    parser.add_argument(
        "--positions", choices=POSITIONS, help=f"of the transformer; default: {POSITIONS[0]}"
    )
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="default: 0")
    parser.add_argument("--limit", type=at_least(2), metavar="N", help="use N pairs of each part")
    _add_beams(parser)
    devices.add_option(parser, at_least(1))
    parser.add_argument(
        "--model-parallel",
        type=at_least(1),
        default=1,
        metavar="M",
        help="share the weights among M of the devices, on JAX; default: 1",
    )
    parser.add_argument(
        "--jit", action="store_true", help="compile the training steps with XLA, which takes long"
    )
    return parser.parse_args(argv)


def _parse_translate(argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM} translate", description="A translation of each sentence."
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the --output of a finished run"
    )
    parser.add_argument("sentences", nargs="+", metavar="sentence")
    _add_beams(parser)
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw what the first translation looked at"
    )
    return parser.parse_args(argv)


def _add_beams(parser):
    parser.add_argument(
        "--beams",
        type=at_least(1),
        default=4,
        metavar="N",
        help="of the search; default: 4",
    )
