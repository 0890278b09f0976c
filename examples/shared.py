"""What the examples share: clear errors, options, sources of data, the folder of a run."""

import argparse
import contextlib
import gzip
import json
import os
import platform
import shutil
import socket
import sys
import urllib.request
import zlib
from pathlib import Path

from examples.later import keras, keras_attention, quiet


class UsageError(Exception):
    """Something that the user can put right: the message says what, in a line or two."""


def program(command, **others):
    """A `main` that runs `command`, or one of `others` if the first argument is its name.

    It returns an exit status: 0, 2 for a user's mistake, 130 for Ctrl-C, 141 where the pipe it
    writes to was closed.
    """

    def main(argv=None):
        arguments = [str(argument) for argument in (sys.argv[1:] if argv is None else argv)]
        run = others[arguments.pop(0)] if arguments and arguments[0] in others else command
        try:
            run(arguments)
        except BrokenPipeError:  # `head` has read enough. What is left to print is dropped.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 141
        except (UsageError, OSError, ImportError) as error:
            missing = isinstance(error, ImportError)
            hint = ': pip install -e ".[examples]" has it.' if missing else ""
            print(f"error: {error}{hint}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            hint = "The same command goes on from there." if run is command else ""
            print("\nInterrupted.", hint, file=sys.stderr)
            return 130
        return 0

    return main


def command_line(program, description):
    """A parser of the options of a program, which shows the description as it is written."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m {program}", None, description, formatter_class=form)


def add_options(parser, *options):
    """Options of a command line, each a name, a type, a default and a meaning."""
    for name, kind, default, meaning in options:
        text = meaning if default is None else f"{meaning}; default: {default}"
        kind_name = kind.__name__.upper()
        parser.add_argument(f"--{name}", type=kind, default=default, metavar=kind_name, help=text)


def add_source(parser, option, meaning):
    """The option of where the data are, or of the sample instead."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(option, type=Path, metavar="PATH", help=meaning)
    source.add_argument("--sample", action="store_true", help="use the small synthetic sample")


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


def add_training_options(parser, output):
    """Options of every example that trains by `fit`."""
    add_options(
        parser,
        ("output", Path, output, "the folder of the run"),
        ("seed", at_least(0), 0, "of the first weights, the order and dropout"),
        ("devices", at_least(1), 1, "how many share each batch, on JAX and TensorFlow"),
    )
    parser.add_argument("--jit", action="store_true", default=None, help="compile with XLA")
    parser.add_argument("--mixed-precision", action="store_true", help="compute in bfloat16")


def parse(parser, argv):
    """The options of a command line. By default XLA compiles on JAX alone."""
    options = parser.parse_args(argv)
    if getattr(options, "jit", False) is None:
        options.jit = keras.backend.backend() == "jax"
    return options


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


def or_sample(load, sample, requested, name, advice):
    """What `load` returns, or with a loud warning `sample()`: if requested, or nothing else is had.

    The `advice` is how to get the data called `name`.
    """
    reason = "--sample requests it"
    try:
        if not requested:
            return load()
    except Exception as error:  # Missing packages, proxies, disks, …: all mean "unavailable".
        reason = f"it is unavailable ({type(error).__name__}: {one_line(error)})"
    shout(
        f"THIS IS NOT {name}. It is a small sample, whose results say nothing about other data.\n"
        f"Why: {reason}.\n{advice}"
    )
    return sample()


def tensorflow_dataset(name, host):
    """A function from a split to its columns, NumPy arrays. Raises whatever keeps it from that."""
    with quiet():
        import tensorflow_datasets as tfds
        from absl import logging

        logging.set_verbosity(logging.ERROR)
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


DATA = Path(__file__).parent / "data"  # the samples
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
        if self.figures and not self.epochs:  # Nothing was trained with its settings yet.
            self.figures = None
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
            raise UsageError(f"Another process is writing to --output {self.path}.") from None
        # A file that is removed while it is locked locks nobody out: filelock looks for that.
        self.lock.callback((self.path / LOCK).unlink, missing_ok=True)
        self.settings = {**self.settings, **(settings or {})}
        self._read()
        if self.figures:
            print(f"Resuming after epoch {len(self.epochs)}.", flush=True)
            return
        (self.path / "tokenizer.json").unlink(missing_ok=True)  # of other settings, perhaps
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
        writer(partial)
        os.replace(partial, self.path / name)

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
    text = read_text(file := Path(folder) / FIGURES)
    try:
        figures = json.loads(text)
        whole = {"program", "settings", "finished", "epochs"} <= figures.keys()
    except (ValueError, AttributeError):
        whole = False
    if not whole or figures["program"] != program:
        raise UsageError(f"{file} is damaged, or of another program than {program}.")
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
            import keras_attention  # noqa: F401 - It registers the layers.

            return figures, keras.models.load_model(path)
    except Exception as error:  # Keras has no class of its own for what may be wrong.
        raise UsageError(f"{path} is missing, damaged or no model: {one_line(error)}") from None
