"""A text file, a finished run on it, and small sizes."""

import os

import pytest

from examples import language_model

SIZES = {"layers": 1, "heads": 2, "dim": 16, "context": 8}
TINY = ["--preset", "small", "--batch-size", 4, "--steps", 6, "--measure-every", 3]
TINY += [part for name, size in SIZES.items() for part in (f"--{name}", size)]


def dialogues(turns):
    """The beginning of the sample."""
    lines = language_model.SAMPLE.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(lines[: 6 * turns])


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "dialogues.txt"
    path.write_text(dialogues(20), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished(text_file, tmp_path_factory):
    """The output of an uninterrupted run of two epochs, one for all workers of pytest-xdist."""
    filelock = pytest.importorskip("filelock", reason="the example needs the extra `examples`")
    root = tmp_path_factory.getbasetemp()
    output = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "language_model"
    # The second worker finds the run finished.
    with filelock.FileLock(f"{output}.lock"):
        options = [*TINY, "--dropout", 0.1, "--data", text_file, "--output", output]
        assert language_model.main(options) == 0
    return output
