"""Two corners of a square in, the other two out: what attention adds to an encoder and a decoder.

    python -m examples.square_sequences [--teacher-forcing 0.5] [--seeds 5] [--epochs 50] …

Trains the same small model without attention and with it, once for each seed, on noisy squares that
it makes itself, and compares the losses on squares that neither has seen. The folder --output gets
the models of the first seed (without_attention.keras and with_attention.keras, from first corners
to last), figures.json, squares.png and alignments.png. It takes about two minutes.
"""

import argparse
import sys
from pathlib import Path

from examples import startup
from examples.errors import UsageError
from examples.run_directory import RunDirectory

# Keras and what imports it are imported where they are needed: they take seconds, and a mistake in
# the command line should not.

PROGRAM = "examples.square_sequences"
SMALL = {"seeds": 2, "epochs": 2, "train": 256, "test": 128}


def main(argv=None):
    """Runs the program and returns its exit status: 0, 2 for a user's mistake, 130 for Ctrl-C."""
    options = _parse(sys.argv[1:] if argv is None else argv)
    try:
        return compare(options)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. The same command starts again.", file=sys.stderr)
        return 130


def compare(options):
    """The program's job."""
    names = ("seeds", "epochs", "train", "test", "hidden", "teacher_forcing", "noise")
    settings = {name: getattr(options, name) for name in names}
    with RunDirectory(options.output, PROGRAM) as run:
        run.check(settings)
        if run.finished:
            print(f"The run in {options.output} is finished already.")
        else:
            with startup.quiet():
                from examples.squares import training

            training.train(run, settings)
        print(report(run.figures))
        print(f"in {options.output}: {', '.join(run.files())}")
    return 0


def report(figures):
    """The comparison of a finished run, as text."""
    lines = [f"mean test loss of {figures['settings']['seeds']} seeds (standard deviation):"]
    for kind, mean in figures["means"].items():
        spread = figures["standard_deviations"][kind]
        spread = "" if spread is None else f" ({spread:.5f})"
        lines.append(
            f"  {kind.replace('_', ' '):18} {mean:.5f}{spread}, "
            f"{figures['parameters'][kind]} parameters, {figures['seconds'][kind]:.0f} s"
        )
    lines.append(f"  {'rule of geometry':18} {figures['rule_loss']:.5f}")
    return "\n".join(lines)


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        default=Path("runs") / "square-sequences",
        help="default: %(default)s",
    )
    counts = {
        "seeds": (5, "runs of each model, with data and weights of their own"),
        "epochs": (50, "passes over the training squares"),
        "train": (2048, "squares to train on"),
        "test": (2048, "squares to measure on"),
        "hidden": (8, "units of encoder and decoder"),
    }
    for name, (default, what) in counts.items():
        parser.add_argument(
            f"--{name}", type=_count, metavar="N", help=f"{what}; default: {default}"
        )
    parser.add_argument(
        "--teacher-forcing",
        type=_probability,
        default=0.5,
        metavar="P",
        help="how often the decoder reads the true corner in training; default: %(default)s",
    )
    parser.add_argument(
        "--noise",
        type=_noise,
        default=0.05,
        metavar="SIGMA",
        help="standard deviation of the noise of a coordinate; default: %(default)s",
    )
    parser.add_argument(
        "--small", action="store_true", help=f"a trial of seconds, which shows nothing: {SMALL}"
    )
    options = parser.parse_args(argv)
    for name, (default, _) in counts.items():
        if getattr(options, name) is None:
            setattr(options, name, SMALL.get(name, default) if options.small else default)
    return options


def _count(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, and is {value}")
    return value


def _probability(text):
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1, and is {value}")
    return value


def _noise(text):
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, and is {value}")
    return value
