"""A folder of synthetic reviews, and a run on it."""

import pytest

from examples import imdb_reviews
from tests.examples.imdb.runs import TINY, main


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """An aclImdb folder of 64 + 32 synthetic reviews."""
    root = tmp_path_factory.mktemp("data") / "aclImdb"
    for split, count, seed in (("train", 64, 0), ("test", 32, 1)):
        texts, labels = imdb_reviews.generate(count, seed)
        for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
            path = root / split / ("pos" if label else "neg") / f"{number}_{9 if label else 2}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def finished(folder, tmp_path_factory):
    """The output of an uninterrupted run of three epochs."""
    output = tmp_path_factory.mktemp("runs") / "finished"
    assert main(*TINY, "--epochs", 3, "--data-dir", folder, "--output", output) == 0
    return output
