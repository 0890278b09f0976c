"""Learns to go on with a text: trains a decoder-only Transformer on it, and generates from it.

    python -m examples.language_model [--data FILE] [--tokens characters|subwords] …
    python -m examples.language_model generate DIR "prompt"

--data is a UTF-8 text file, with .gz or without. Without it the text comes from TensorFlow Datasets
(tiny_shakespeare), and if that is unavailable, it is a small synthetic sample, which the program
then says. The first 90 % of the characters are trained on, and the others measured. With
--pretrained the model and its tokens come from a folder of Hugging Face's format, and are trained
further. The folder --output gets model.keras, the tokens (characters.json, tokenizer.spm or
tokenizer.json), figures.json and curves.png. If the program is interrupted, the same command
resumes after the last measurement.

It runs on Keras with TensorFlow, JAX or PyTorch, and needs these packages:
pip install filelock matplotlib sentencepiece tokenizers safetensors
(sentencepiece for subwords, the last two for --pretrained).
"""

import argparse
import dataclasses
import importlib
import os
import sys
from pathlib import Path

from examples import model_files, pretrained, startup
from examples.argument_types import at_least, fraction, not_negative, positive
from examples.errors import UsageError
from examples.language_model import data, recipes
from examples.run_directory import RunDirectory

# Keras and what imports it are imported where they are needed: that takes seconds, and a mistake in
# the command line should not.

PROGRAM = "examples.language_model"
TOKENS = ("characters", "subwords")
POSITIONS = ("rotary", "learned", "sin-cos", "alibi")
VOCABULARY_SIZE = 1000
# What each kind of tokens needs besides Keras and a backend. The extra `language_model` has all.
PACKAGES = {
    "characters": (),
    "subwords": ("sentencepiece",),
    "pretrained": ("tokenizers", "safetensors"),
}


def main(argv=None):
    """Runs the program and returns its exit status: 0, 2 for a user's mistake, 130 for Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["generate"]:
            return generate(_parse_generate(argv[1:]))
        return train(_parse_train(argv))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = " The same command resumes after the last measurement."
        print(f"\nInterrupted.{'' if argv[:1] == ['generate'] else hint}", file=sys.stderr)
        return 130


def train(options):
    """The program's main job."""
    settings = settings_of(options)
    output = options.output or Path("runs") / "language-model"
    with RunDirectory(output, PROGRAM) as run:
        run.check(settings)
        if run.finished:
            print(f"The run in {output} is finished already.")
        else:
            _require(settings["tokens"])
            dataset = data.load(options.data, options.sample)
            if dataset.warning:
                startup.shout(dataset.warning)

            from examples.language_model import training

            training.train(run, dataset, settings)
        print(report(run.figures))
        print(f"in {output}: {', '.join(run.files())}")
    return 0


def settings_of(options):
    """What the figures depend on.

    Raises:
        UsageError: options contradict one another.
    """
    if options.pretrained:
        _check_pretrained(options)
        recipe, tokens = recipes.PRETRAINED, "pretrained"
    else:
        recipe = recipes.RECIPES[options.preset or "default"]
        tokens = options.tokens or "characters"
    if options.vocabulary_size and tokens != "subwords":
        raise UsageError("--vocabulary-size is for --tokens subwords.")
    settings = {
        key: value if getattr(options, key) is None else getattr(options, key)
        for key, value in dataclasses.asdict(recipe).items()
    }
    if options.measure_every is None:
        settings["measure_every"] = min(settings["measure_every"], settings["steps"])
    if settings["steps"] % settings["measure_every"]:
        raise UsageError(
            "--steps must be a multiple of --measure-every, received "
            f"{settings['steps']} and {settings['measure_every']}."
        )
    settings["tokens"] = tokens
    settings["vocabulary_size"] = None
    if tokens == "subwords":
        settings["vocabulary_size"] = options.vocabulary_size or VOCABULARY_SIZE
    settings["pretrained"] = options.pretrained and str(options.pretrained)
    for key in ("seed", "jit", "mixed_precision"):
        settings[key] = getattr(options, key)
    return settings


def _check_pretrained(options):
    given = ("preset", "tokens", "vocabulary_size", *recipes.OF_THE_MODEL)
    for name in given:
        if getattr(options, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--{option} cannot be given with --pretrained, whose model has it.")
    pretrained.check_folder(options.pretrained, ["tokenizer.json"])


def report(figures):
    """What a finished run has found, as text."""
    settings, sizes = figures["settings"], figures["characters"]
    lines = [
        f"after {settings['steps']:,} steps, validation loss {figures['validation_loss']:.4f} per "
        f"token (perplexity {figures['validation_perplexity']:.2f})"
    ]
    if settings["tokens"] != "characters":
        lines.append(f"  {figures['validation_loss_per_character']:.4f} per character")
    lines.append(
        f"on {figures['dataset']}: {sizes['train']:,} characters to train, "
        f"{sizes['validation']:,} to validate"
    )
    return "\n".join(lines)


def generate(options):
    """What the model of an earlier run goes on with."""
    model_files.check_texts([options.prompt], "a prompt")
    figures = model_files.finished_run(options.directory, PROGRAM)
    if not options.prompt:
        raise UsageError("The prompt is empty.")
    _require(figures["settings"]["tokens"])

    from examples.language_model import prediction, text

    model_files.check(options.directory / prediction.MODEL)
    model, tokens, context = prediction.load(options.directory, PROGRAM)
    # An argument that is not UTF-8 reaches Python as surrogates, which no tokenizer takes.
    prompt = options.prompt.encode("utf-8", "replace").decode("utf-8")
    numbers = tokens.encode(prompt)
    if not len(numbers):
        raise UsageError(f"The prompt {prompt!r} has no tokens.")
    going_on = prediction.Generate(model, context, options.temperature, options.top_k, options.seed)
    try:
        print(prompt, end="", flush=True)
        for piece in text.pieces(tokens, going_on(numbers, options.length)):
            print(piece, end="", flush=True)
        print(flush=True)
    except BrokenPipeError:
        # The reader, such as `head`, has had enough. So has what Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _require(tokens):
    """Imports Keras, its backend and what `tokens` need, or says what is missing."""
    # TensorFlow turns oneDNN's products on by itself on some processors only.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    packages = PACKAGES[tokens]
    try:
        with startup.quiet():
            for package in ("keras", *packages):
                importlib.import_module(package)
    except ImportError as error:
        needed = " ".join(("filelock", "matplotlib", *packages))
        raise UsageError(
            f"{error}. This example needs Keras on TensorFlow, JAX or PyTorch, as KERAS_BACKEND "
            f"says, and: pip install {needed}"
        ) from None


def _parse_train(argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", type=Path, metavar="FILE", help="a text file")
    source.add_argument("--sample", action="store_true", help="use the made-up sample")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: runs/language-model")
    parser.add_argument(
        "--preset",
        choices=tuple(recipes.RECIPES),
        help="defaults of the sizes and the training: nanogpt has those of its README for a CPU, "
        "small is a quick try",
    )
    parser.add_argument("--tokens", choices=TOKENS, help=f"default: {TOKENS[0]}")
    parser.add_argument(
        "--vocabulary-size",
        type=at_least(300),
        metavar="N",
        help=f"subwords, at most; default: {VOCABULARY_SIZE}",
    )
    parser.add_argument(
        "--pretrained",
        type=Path,
        metavar="FOLDER",
        help="train the model of a folder of Hugging Face's format further, with its tokens",
    )
    for name, minimum, meaning in (
        ("layers", 1, "blocks"),
        ("heads", 1, "heads of a block"),
        ("dim", 1, "features"),
        ("context", 2, "tokens of a window"),
        ("batch-size", 1, "windows of a step"),
        ("steps", 1, "optimizer steps"),
        ("measure-every", 1, "steps between two measurements and checkpoints"),
    ):
        parser.add_argument(
            f"--{name}",
            type=at_least(minimum),
            metavar="N",
            help=f"{meaning}; default: the preset's",
        )
    parser.add_argument("--dropout", type=fraction, metavar="RATE", help="default: the preset's")
    parser.add_argument(
        "--learning-rate",
        type=positive,
        metavar="RATE",
        help="the highest, after --warmup-steps; default: the preset's",
    )
    parser.add_argument(
        "--warmup-steps", type=at_least(1), metavar="N", help="default: the preset's"
    )
    parser.add_argument("--positions", choices=POSITIONS, help=f"default: {POSITIONS[0]}")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "--jit", action="store_true", help="compile the training steps with XLA, which takes long"
    )
    parser.add_argument(
        "--mixed-precision", action="store_true", help="compute in bfloat16, with float32 weights"
    )
    return parser.parse_args(argv)


def _parse_generate(argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM} generate", description="A prompt, and what comes after it."
    )
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="the --output of a finished run"
    )
    parser.add_argument("prompt", help="what to go on with")
    parser.add_argument(
        "--length", type=at_least(1), default=500, metavar="N", help="tokens; default: 500"
    )
    parser.add_argument(
        "--temperature",
        type=not_negative,
        default=0.8,
        metavar="T",
        help="below 1 for likelier tokens, 0 for the likeliest alone; default: 0.8",
    )
    parser.add_argument(
        "--top-k", type=at_least(1), metavar="N", help="draw from the N likeliest; default: all"
    )
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="default: 0")
    return parser.parse_args(argv)
