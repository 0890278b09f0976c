"""A folder of synthetic pairs, a tokenizer of them, and a run on them."""

import os

import pytest

from examples.translation import sample as translation_sample
from examples.translation import text
from tests.examples.translation.runs import SIZES, train, write


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 400 + 20 + 20 synthetic pairs."""
    root = tmp_path_factory.mktemp("data") / "pairs"
    root.mkdir()
    for part, (count, seed) in SIZES.items():
        for language, sentences in zip(
            ("en", "de"), translation_sample.generate(count, seed), strict=True
        ):
            write(root, f"{part}.{language}.gz", sentences)
    return root


@pytest.fixture
def broken(folder, tmp_path):
    """A copy of the folder, to be damaged."""
    root = tmp_path / "pairs"
    root.mkdir()
    for path in folder.iterdir():
        (root / path.name).write_bytes(path.read_bytes())
    return root


@pytest.fixture(scope="session")
def tokenizer_model():
    sentences = [*translation_sample.generate(400, 0)[0], *translation_sample.generate(400, 0)[1]]
    return text.learn_tokenizer(sentences, 500)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_model):
    return text.SentencePieceTokenizer(tokenizer_model)


@pytest.fixture(scope="session")
def finished(folder, tmp_path_factory):
    """The output of an uninterrupted run of two epochs, one for all workers of pytest-xdist."""
    import filelock  # Not everyone who collects tests has what the example needs.

    root = tmp_path_factory.getbasetemp()
    output = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "finished"
    # The second worker finds the run finished.
    with filelock.FileLock(f"{output}.lock"):
        assert train("--epochs", "2", "--data-dir", folder, "--output", output) == 0
    return output
