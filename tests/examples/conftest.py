"""What the tests of several examples share."""

import contextlib
import json

import pytest

from examples.shared import Run


def figures(output):
    """What the run in a folder has written down."""
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


@pytest.fixture
def interrupted(monkeypatch):
    """A function from a number of epochs to a block in which runs end by Ctrl-C after so many.

    That is the worst moment: the backup of the next epoch is there, and its figures are not.
    """

    @contextlib.contextmanager
    def after(epochs):
        finish_epoch = Run.finish_epoch

        def interrupt(run, **figures):
            if len(run.epochs) == epochs:
                raise KeyboardInterrupt
            finish_epoch(run, **figures)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "finish_epoch", interrupt)
            yield

    return after
