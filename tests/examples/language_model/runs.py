"""What tests of the language model share: small runs, and what they found."""

import json
from pathlib import Path

import keras

from examples.language_model import command

ROOT = Path(__file__).parents[3]
SIZES = {"layers": 1, "heads": 2, "dim": 16, "context": 8}
TINY = ["--preset", "small", "--batch-size", 4, "--steps", 6, "--measure-every", 3]
TINY += [part for name, size in SIZES.items() for part in (f"--{name}", size)]


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def main(*arguments):
    return command.main([str(argument) for argument in arguments])


def figures(output):
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def curves(output):
    """What each epoch gave, without the time that it took."""
    timed = ("seconds", "tokens_per_second")
    return [
        {name: value for name, value in epoch.items() if name not in timed}
        for epoch in figures(output)["epochs"]
    ]
