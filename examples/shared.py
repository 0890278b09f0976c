"""What the examples share: clear errors, options, the folder of a run, resuming, devices."""

import argparse
import contextlib
import gzip
import json
import os
import platform
import shutil
import socket
import sys
import time
import urllib.request
import zlib
from pathlib import Path

import numpy as np


@contextlib.contextmanager
def quiet():
    """In this block nothing reaches standard error: TensorFlow writes there when imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow does not on every CPU.
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


with quiet():
    import keras

    import keras_attention


class UsageError(Exception):
    """Something that the user can put right: the message says what, in a line or two."""


def exit_status(command, argv=None, **others):
    """Runs `command`, or one of `others` if the first argument is its name.

    Returns 0, 2 for a user's mistake, 130 for Ctrl-C, 141 where the pipe it writes to was closed.
    """
    argv = [str(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    command = others[argv.pop(0)] if argv and argv[0] in others else command
    try:
        command(argv)
    except BrokenPipeError:  # `head` has read enough. What is left to print is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except (UsageError, OSError, ImportError) as error:
        hint = ': pip install -e ".[examples]" has it.' if isinstance(error, ImportError) else ""
        print(f"error: {error}{hint}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from there.", file=sys.stderr)
        return 130
    return 0


def command_line(program, description):
    """A parser of the options of a program, which shows the description as it is written."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m {program}", None, description, formatter_class=form)


def add_training_options(parser):
    """Options of every example that trains by `fit`."""
    parser.add_argument("--output", type=Path, metavar="DIR", help="the folder of the run")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="default: 0")
    parser.add_argument("--jit", action="store_true", help="compile with XLA, as JAX always does")
    parser.add_argument("--mixed-precision", action="store_true", help="compute in bfloat16")
    help = "share each batch among N devices, on JAX and TensorFlow; default: 1"
    parser.add_argument("--devices", type=at_least(1), default=1, metavar="N", help=help)


def number(kind, condition, holds):
    """The type of an option: a number that fulfills a condition."""

    def parse(text):
        if not holds(value := kind(text)):
            raise argparse.ArgumentTypeError(f"must be {condition}, received {value}")
        return value

    parse.__name__ = kind.__name__
    return parse


def at_least(minimum):
    """The type of integers from `minimum` on."""
    return number(int, f"at least {minimum}", lambda value: value >= minimum)


fraction = number(float, "at least 0 and below 1", lambda value: 0 <= value < 1)
positive = number(float, "above 0", lambda value: 0 < value < float("inf"))


def one_line(error):
    """What an error says, without line breaks."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def shout(warning):
    """Prints what nobody should miss, between two rules, to standard error."""
    print("*" * 80, warning, "*" * 80, sep="\n", file=sys.stderr, flush=True)


def read_text(path, largest=2**30):
    """The text of a UTF-8 file, gzipped or not, of at most `largest` bytes."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # A pipe or a device could be read for ever.
            raise UsageError(f"{path} cannot be read: it is no regular file.")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise UsageError(f"{path} cannot be read: it holds more than {largest:,} bytes.")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} in line {line}.") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or f"it is damaged or no gzip file: {error}"
        raise UsageError(f"{path} cannot be read: {reason}.") from None


def tensorflow_dataset(name, host):
    """A function from a split to its columns, NumPy arrays. Raises whatever keeps it from that."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, try_gcs=False)
    if not builder.is_prepared():
        if not urllib.request.getproxies():  # Without a network it would retry for minutes.
            socket.create_connection((host, 80), timeout=10).close()
        builder.download_and_prepare()
    return lambda split: tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))


def checksum(blocks):
    """Differs between two sequences of texts or bytes, and between two orders of one."""
    value = 0
    for block in blocks:
        value = zlib.crc32(f"{block}\0".encode() if isinstance(block, str) else block, value)
    return value


FIGURES, MODEL, LOCK = "figures.json", "model.keras", ".lock"


class Run:
    """The folder of one run of one program, locked from `begin` to the end of a `with` block.

    `figures.json` is the one source of truth. It is replaced as a whole, after the files that it
    tells of are written: a program killed at any moment leaves its last finished epoch.
    The `settings` are what the results depend on, as far as it is known before data are read.
    """

    def __init__(self, path, program, settings):
        self.path, self.program, self.settings = Path(path), program, settings
        self.figures, self.lock = None, contextlib.ExitStack()
        self._read()

    def _read(self):
        """Takes over what is in the folder, if it is a run of these settings."""
        if self.path.is_file():
            raise UsageError(f"--output {self.path} is a file, and must be a folder.")
        names = sorted(path.name for path in self.path.glob("[!.]*"))
        if FIGURES in names:
            self.figures = read_figures(self.path, self.program)
        elif names:
            found = f"it holds {names[0]}. Give a new folder."
            raise UsageError(f"--output {self.path} is not a run of {self.program}: {found}")
        for name, value in json.loads(json.dumps(self.settings)).items():  # Tuples are lists.
            if self.figures and (saved := self.figures["settings"].get(name)) != value:
                raise UsageError(
                    f"{self.path} holds a run with other settings: {name} is {saved!r} there and "
                    f"{value!r} now. Give the same settings to resume it, or another --output."
                )

    def begin(self, settings=None, **facts):
        """Locks the folder, and starts or resumes the run, with settings known from the data."""
        import filelock

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock.enter_context(filelock.FileLock(self.path / LOCK, timeout=0))
        except filelock.Timeout:
            message = f"Another process is writing to --output {self.path}. Give another folder."
            raise UsageError(message) from None
        except OSError as error:
            raise UsageError(f"--output {self.path} cannot be written: {error}.") from None
        # A file that is removed while it is locked locks nobody out: filelock looks for that.
        self.lock.callback((self.path / LOCK).unlink, missing_ok=True)
        self.settings = {**self.settings, **(settings or {})}
        self._read()
        if self.figures:
            print(f"Resuming after epoch {len(self.epochs)}.", flush=True)
            return
        names = "keras", keras.backend.backend(), "numpy", keras_attention.__name__
        versions = {name: sys.modules[name].__version__ for name in names}
        self.figures = {
            "program": self.program,
            "settings": self.settings,
            **facts,
            "versions": {"python": platform.python_version(), **versions},
            "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
            "finished": False,
            "epochs": [],
        }
        self._save()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.lock.close()

    @property
    def finished(self):
        return bool(self.figures and self.figures["finished"])

    @property
    def epochs(self):
        """What is known of each finished epoch, a list of dictionaries."""
        return self.figures["epochs"]

    def write(self, name, writer):
        """Calls `writer(path)` for a temporary path, which then replaces the file `name`."""
        partial = self.path / f".partial-{name}"
        try:
            writer(partial)
            os.replace(partial, self.path / name)
        except OSError as error:
            raise UsageError(f"{self.path / name} cannot be written: {error}.") from error

    def finish_epoch(self, **figures):
        """Adds what is known of an epoch."""
        self.epochs.append(figures)
        self._save()

    def finish(self, **facts):
        """Marks the run as finished, which needs no backup any more."""
        self.figures |= {**facts, "finished": True}
        self._save()
        for folder in self.path.glob("backup-*"):
            shutil.rmtree(folder)

    def _save(self):
        text = json.dumps(self.figures, indent=2) + "\n"
        self.write(FIGURES, lambda path: path.write_text(text, encoding="utf-8"))


def read_figures(folder, program):
    """The contents of `figures.json` in the folder of a run of `program`."""
    if Path(folder).is_file():
        raise UsageError(f"{folder} is a file. Give the folder that it is in.")
    text = read_text(file := Path(folder) / FIGURES)
    try:
        figures = json.loads(text)
    except ValueError:
        raise UsageError(f"{file} is not JSON: it is damaged, or of another program.") from None
    if not isinstance(figures, dict) or figures.get("program") != program:
        raise UsageError(f"{file} is of another program than {program}.")
    if not {"settings", "finished", "epochs"} <= set(figures):
        raise UsageError(f"{file} is damaged: it has no settings or no epochs.")
    return figures


def load_run(folder, program, texts=()):
    """The figures and the model of a finished run, and a check of the texts for it."""
    for text in texts:
        if os.path.exists(os.path.join(text, FIGURES)):
            raise UsageError(f"{text!r} is the folder of a run, and was given as a text.")
    figures, path = read_figures(folder, program), Path(folder) / MODEL
    if not figures["finished"]:
        raise UsageError(f"The run in {folder} is not finished: start it again as before.")
    try:
        with quiet():  # Keras imports TensorFlow here, on other backends too.
            return figures, keras.models.load_model(path)
    except Exception as error:  # Keras has no class of its own for what may be wrong.
        raise UsageError(f"{path} is missing, damaged or no model: {one_line(error)}") from None


class Epochs(keras.callbacks.Callback):
    """Saves a run after each epoch, and goes on after the last one as if it had never ended.

    Keras's `BackupAndRestore` writes two files, one after the other. Here each epoch has a folder
    of them, which counts once `figures.json` has the epoch. Order and dropout depend on the seed
    and the epoch alone. Where output is no terminal, and has no bar, it prints a line a minute.

    `batches` may be `Batches`, drawn anew for each epoch. With `adapters` (LoRA) it saves what is
    trained, and nothing else: Keras would merge them into kernels, and train others on.
    """

    def __init__(self, run, batches=None, adapters=False):
        super().__init__()
        self.run, self.batches, self.adapters = run, batches, adapters

    def on_train_begin(self, logs=None):
        if not self.run.epochs:
            return
        folder = self.run.path / f"backup-{len(self.run.epochs)}"
        try:
            list(folder.iterdir())  # Keras would begin anew where it finds nothing.
            self._restore(folder)
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{folder} is damaged: {one_line(error)}") from None

    def on_epoch_begin(self, epoch, logs=None):
        rng = np.random.default_rng((self.run.settings["seed"], epoch, 1))
        keras.utils.set_random_seed(int(rng.integers(2**31)))  # of PyTorch's dropout
        for variable in self.model.variables:
            if variable.name == "seed_generator_state":
                variable.assign(rng.integers(2**31, size=variable.shape))
        if self.batches:
            self.batches.start(epoch)
        self.number, self.begun = epoch + 1, time.perf_counter()
        self.shown = self.begun

    def on_train_batch_end(self, batch, logs=None):
        if not on_terminal() and time.perf_counter() - self.shown >= 60:
            self.shown = time.perf_counter()
            self.show(f"epoch {self.number}, step {batch + 1}/{self.params['steps']}", logs)

    def on_epoch_end(self, epoch, logs=None):
        figures = {name: float(value) for name, value in logs.items()}
        seconds = round(time.perf_counter() - self.begun, 2)
        self._save(self.run.path / f"backup-{self.number}", epoch)
        self.run.finish_epoch(epoch=self.number, seconds=seconds, **figures)
        shutil.rmtree(self.run.path / f"backup-{epoch}", ignore_errors=True)
        if not on_terminal():
            self.show(f"epoch {self.number}, {seconds:.1f} s", logs)

    def show(self, label, logs):
        """Prints how far training is."""
        found = (f"{name} {float(value):.4f}" for name, value in logs.items())
        print(f"{label}: {', '.join(found)}", flush=True)

    def _keras(self, folder):
        backup = keras.callbacks.BackupAndRestore(str(folder))
        backup.set_model(self.model)
        return backup

    def _trained(self):
        self.model.optimizer.build(self.model.trainable_variables)
        return [*self.model.trainable_variables, *self.model.optimizer.variables]

    def _save(self, folder, epoch):
        if not self.adapters:
            return self._keras(folder).on_epoch_end(epoch)
        folder.mkdir(exist_ok=True)
        np.savez(folder / "trained.npz", *map(keras.ops.convert_to_numpy, self._trained()))

    def _restore(self, folder):
        if not self.adapters:
            return self._keras(folder).on_train_begin()
        with np.load(folder / "trained.npz") as arrays:
            for variable, name in zip(self._trained(), arrays.files, strict=True):
                variable.assign(arrays[name])


def on_terminal():
    """The `verbose` of `fit`: Keras's bar on a terminal, and nothing elsewhere."""
    return int(sys.stdout.isatty())


@contextlib.contextmanager
def devices(count, share=None):
    """In this block models are made for so many devices, which share each batch.

    On JAX, `share` may give another `keras.distribution` from a list of `devices`.
    """
    if count == 1:
        yield
        return
    if keras.backend.backend() == "torch":
        raise UsageError("--devices is for JAX and TensorFlow: docs/scaling.md is on PyTorch.")
    if tensorflow := keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        listed = tf.config.list_logical_devices
        names = [device.name for device in listed("GPU") or listed("CPU")]
    else:
        names = keras.distribution.list_devices()
    if len(names) < count:
        found = f"{len(names)}: {', '.join(names)}. docs/scaling.md has virtual ones on a CPU."
        raise UsageError(f"--devices {count} needs as many devices, and there are {found}")
    if tensorflow:
        made = tf.distribute.MirroredStrategy(names[:count])
    else:
        made = (share or keras.distribution.DataParallel)(devices=names[:count])
    with made.scope():
        yield
