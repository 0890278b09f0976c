"""A text file, and a finished run on it."""

import os

import pytest

from examples.language_model import sample
from tests.examples.language_model.runs import TINY, main


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "dialogues.txt"
    path.write_text(sample.generate(20), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished(text_file, tmp_path_factory):
    """The output of an uninterrupted run of two epochs, one for all workers of pytest-xdist."""
    import filelock  # Not everyone who collects tests has what the example needs.

    root = tmp_path_factory.getbasetemp()
    output = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "language_model"
    # The second worker finds the run finished.
    with filelock.FileLock(f"{output}.lock"):
        assert main(*TINY, "--dropout", 0.1, "--data", text_file, "--output", output) == 0
    return output
