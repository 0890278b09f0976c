"""The folder that a training program writes to: finished epochs survive whatever ends the program.

`figures.json` is the one source of truth. It is replaced as a whole, after the files that it names
of are on the disk, so a program killed at any moment leaves the state of its last finished epoch.
Nothing here imports Keras, so a mistake in `--output` is reported at once.
"""

import contextlib
import json
import os
from pathlib import Path

from examples.errors import UsageError

FIGURES = "figures.json"
_PARTIAL = ".partial-"
_LOCK = ".lock"
# Settings that files of earlier versions lack, which are then not compared.
_ADDED = ("data_source",)


class RunDirectory:
    """A folder of one run of one program, locked until `close` or the end of a `with` block.

    The lock is the operating system's: it ends with the process, however that ends.

    Args:
        path: the folder. It may not exist yet, be empty, or contain a run of the same program.
        program: the program's name in `figures.json`.

    Raises:
        UsageError: the folder cannot be written to, holds something else, or another process has
            it. Nothing is changed.
    """

    def __init__(self, path, program):
        self.path = Path(path)
        self.program = program
        self.figures = None
        self._made = []
        self._lock = None
        try:
            self._check_contents()
            self._acquire()
            if (self.path / FIGURES).exists():
                self.figures = self._read_figures()
        except OSError as error:
            self.close()
            raise UsageError(f"--output {path} cannot be written: {error.strerror}.") from error
        except UsageError:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    @property
    def epochs(self):
        """What is known of each finished epoch, a list of dictionaries."""
        return self.figures["epochs"]

    @property
    def finished(self):
        """Whether the folder holds a run that is finished."""
        return self.figures is not None and self.figures["finished"]

    def files(self):
        """The names of the files that the run has left so far."""
        return sorted(file.name for file in self.path.iterdir() if not file.name.startswith("."))

    def _check_contents(self):
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UsageError(f"--output {self.path} is a file, and must be a folder.")
        own = (FIGURES, _LOCK)
        others = [
            file.name
            for file in self.path.iterdir()
            if file.name not in own and not file.name.startswith(_PARTIAL)
        ]
        if others and not (self.path / FIGURES).exists():
            raise UsageError(
                f"--output {self.path} is not a run of {self.program}: it holds "
                f"{sorted(others)[0]}. Give a new folder."
            )

    def _acquire(self):
        try:
            import filelock
        except ImportError as error:
            raise UsageError(f"{error}. Examples need it: pip install filelock") from None
        self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(self.path / _LOCK)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(
                f"Another process is writing to --output {self.path}. Wait until it has ended, or "
                "give another folder."
            ) from None
        self._lock = lock

    def close(self):
        """Releases the folder, and removes it if nothing was written to it."""
        if self._lock is not None:
            # A file that is removed while it is locked locks nobody out: filelock looks for that.
            with contextlib.suppress(OSError):
                (self.path / _LOCK).unlink()
            self._lock.release()
            self._lock = None
        with contextlib.suppress(OSError):
            for path in self._made:
                path.rmdir()
        self._made = []

    def _read_figures(self):
        figures = read_figures(self.path, self.program)
        checkpoint = self._checkpoint(len(figures["epochs"]))
        if figures["epochs"] and not figures["finished"] and not checkpoint.exists():
            raise UsageError(f"{checkpoint} is missing, so the run cannot be resumed.")
        return figures

    def check(self, settings):
        """Compares the run that is in the folder, if any, with some of the settings.

        A program calls it before it reads data.

        Args:
            settings: those known so far, ready for JSON.

        Raises:
            UsageError: the run has other values of these settings.
        """
        if self.figures is None:
            return
        saved = self.figures["settings"]
        different = [
            f"{name} is {saved.get(name)!r} there and {value!r} now"
            for name, value in _as_json(settings).items()
            if saved.get(name) != value and (name in saved or name not in _ADDED)
        ]
        if different:
            raise UsageError(
                f"{self.path} holds a run with other settings: {'; '.join(different)}. "
                "Give the same settings to resume it, or another --output."
            )

    def begin(self, settings, **facts):
        """Starts a run with `settings`, or takes up the one that is there if it has the same.

        Args:
            settings: everything that the results depend on, ready for JSON.
            **facts: what else goes into `figures.json`.
        """
        if self.figures is not None:
            self.check({**dict.fromkeys(self.figures["settings"]), **settings})
            return
        self.figures = {
            "program": self.program,
            **facts,
            "settings": _as_json(settings),
            "finished": False,
            "epochs": [],
        }
        self._save_figures()

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
        """Saves the model with its optimizer, and then the results of `epoch` in `figures.json`."""
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
    """The contents of `figures.json` in the folder `path`, after a check that `program` wrote it.

    Raises:
        UsageError: `path` is not the folder of a run of `program`.
    """
    path = Path(path)
    file = path / FIGURES
    if path.is_file():
        raise UsageError(f"{path} is a file. Give the folder that it is in: {path.parent}")
    try:
        figures = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"{file} is not JSON: it is damaged, or of another program.") from None
    if not isinstance(figures, dict) or figures.get("program") != program:
        raise UsageError(f"{file} is of another program than {program}.")
    kinds = {"settings": dict, "finished": bool, "epochs": list}
    if not all(isinstance(figures.get(name), kind) for name, kind in kinds.items()):
        raise UsageError(f"{file} is damaged: it must have {', '.join(kinds)}.")
    return figures


def _as_json(settings):
    """As they would be read again: a tuple is a list."""
    return json.loads(json.dumps(settings))
