"""The folder that a training program writes to: finished epochs survive whatever ends the program.

`figures.json` is the one source of truth. It is replaced as a whole, after the files that it speaks
of are on the disk, so a program killed at any moment leaves the state of its last finished epoch.
"""

import json
import os
from pathlib import Path

from examples.errors import UsageError

FIGURES = "figures.json"
_PARTIAL = ".partial-"


class RunDirectory:
    """A folder of one run of one program.

    Args:
        path: the folder. It may not exist yet, be empty, or hold a run of the same program.
        program: what the program calls itself in `figures.json`.

    Raises:
        UsageError: the folder cannot be written to, or holds something else. Nothing is changed.
    """

    def __init__(self, path, program):
        self.path = Path(path)
        self.program = program
        self.figures = None
        if self.path.is_dir():
            self.figures = self._read_figures()
        elif self.path.exists():
            raise UsageError(f"--output {self.path} is a file, and must be a folder.")
        self._check_writable()

    @property
    def epochs(self):
        """What is known of each finished epoch, a list of dictionaries."""
        return self.figures["epochs"]

    def _read_figures(self):
        file = self.path / FIGURES
        if not file.exists():
            strangers = [f.name for f in self.path.iterdir() if not f.name.startswith(_PARTIAL)]
            if strangers:
                raise UsageError(
                    f"--output {self.path} holds files of something else ({sorted(strangers)[0]}, "
                    "…): give a new folder."
                )
            return None
        figures = read_figures(self.path, self.program)
        checkpoint = self._checkpoint(len(figures["epochs"]))
        if figures["epochs"] and not figures["finished"] and not checkpoint.exists():
            raise UsageError(f"{checkpoint} is missing, so the run cannot be resumed.")
        return figures

    def _check_writable(self):
        existing = self.path.absolute()
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise UsageError(f"--output {self.path} cannot be written, because of {existing}.")

    def begin(self, settings, **facts):
        """Starts a run with `settings`, or takes up the one that is there if it has the same.

        Args:
            settings: everything that the figures depend on, ready for JSON.
            **facts: what else `figures.json` is to say.
        """
        settings = json.loads(json.dumps(settings))
        if self.figures is None:
            self.figures = {
                "program": self.program,
                **facts,
                "settings": settings,
                "finished": False,
                "epochs": [],
            }
            self._save_figures()
            return
        saved = self.figures["settings"]
        different = [
            f"{name} is {saved.get(name)!r} there and {settings.get(name)!r} now"
            for name in {**saved, **settings}
            if saved.get(name) != settings.get(name)
        ]
        if different:
            raise UsageError(
                f"{self.path} holds a run with other settings: {'; '.join(different)}. "
                "Give the same settings to resume it, or another --output."
            )

    def write(self, name, writer):
        """Calls `writer(path)` for a temporary path, which then replaces the file `name`."""
        partial = self.path / f"{_PARTIAL}{name}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            writer(partial)
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, self.path / name)
        except OSError as error:
            raise UsageError(f"{self.path / name} cannot be written: {error}.") from error

    def finish_epoch(self, model, epoch):
        """Saves the model with its optimizer, and then says in `figures.json` what `epoch` gave."""
        number = len(self.epochs) + 1
        self.write(self._checkpoint(number).name, model.save)
        self.epochs.append(epoch)
        self._save_figures()
        self._remove_checkpoints(but=self._checkpoint(number))

    def load_checkpoint(self, load):
        """`load(path)` of the last finished epoch's model, or None before the first."""
        if not self.epochs:
            return None
        checkpoint = self._checkpoint(len(self.epochs))
        try:
            return load(checkpoint)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{checkpoint} cannot be loaded: {reason}") from error

    def finish(self, **facts):
        """Marks the run as finished, which needs no checkpoint any more."""
        self.figures.update(facts, finished=True)
        self._save_figures()
        self._remove_checkpoints()

    def _checkpoint(self, number):
        return self.path / f"checkpoint-{number}.keras"

    def _remove_checkpoints(self, but=None):
        for checkpoint in self.path.glob("checkpoint-*.keras"):
            if checkpoint != but:
                checkpoint.unlink()

    def _save_figures(self):
        text = json.dumps(self.figures, indent=2) + "\n"
        self.write(FIGURES, lambda path: path.write_text(text, encoding="utf-8"))


def read_figures(path, program):
    """What `figures.json` in the folder `path` says, after a check that `program` wrote it."""
    file = Path(path) / FIGURES
    try:
        figures = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"{file} is not JSON: it is damaged, or of another program.") from None
    if not isinstance(figures, dict) or figures.get("program") != program:
        raise UsageError(f"{file} is of another program than {program}.")
    return figures
