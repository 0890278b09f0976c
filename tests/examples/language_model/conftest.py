"""A text file, and how much of the sample it has."""

import pytest

from examples import language_model


def dialogues(turns):
    """The beginning of the sample."""
    lines = language_model.SAMPLE.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(lines[: 6 * turns])


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "dialogues.txt"
    path.write_text(dialogues(20), encoding="utf-8")
    return path
