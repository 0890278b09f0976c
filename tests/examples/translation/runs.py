"""What tests of the translation example share: files and small runs."""

import gzip
import json
from pathlib import Path

import keras
import pytest

from examples.translation import command as translation
from examples.translation import text

ROOT = Path(__file__).parents[3]
SIZES = {"train": (400, 0), "val": (20, 1), "test_2016_flickr": (20, 2)}
TINY = ["--small", "--vocabulary-size", "500", "--batch-tokens", "512", "--beams", "2"]


def write(root, name, sentences):
    data = "".join(f"{sentence}\n" for sentence in sentences).encode("utf-8")
    (root / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def lines(root, name):
    return gzip.decompress((root / name).read_bytes()).decode("utf-8").splitlines()


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def main(*arguments):
    return translation.main([str(argument) for argument in arguments])


def train(*arguments):
    """`main` with few lengths of batches, for each of which a program is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "LENGTHS", (24, 64))
        return main(*TINY, *arguments)


def figures(output):
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def curves(output):
    """What each epoch gave, without the time that it took."""
    timed = ("seconds", "tokens_per_second")
    return [
        {name: value for name, value in epoch.items() if name not in timed}
        for epoch in figures(output)["epochs"]
    ]
