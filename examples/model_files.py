"""Loads the model of a finished run. Whatever is wrong with it is reported in one line."""

import os
import sys
import zipfile
import zlib
from pathlib import Path

from examples import run_directory, startup
from examples.errors import UsageError

MODEL = "model.keras"


def finished_run(folder, program):
    """`figures.json` of a finished run.

    Raises:
        UsageError: `folder` holds no finished run of `program`.
    """
    figures = run_directory.read_figures(folder, program)
    if not figures["finished"]:
        raise UsageError(
            f"The run in {folder} is not finished ({len(figures['epochs'])} epochs so far): "
            "start it again with the same settings."
        )
    return figures


def load(path):
    """The Keras model in a `.keras` file.

    Raises:
        UsageError: the file is missing, damaged, or not a Keras model.
    """
    check(path)
    import keras

    # Keras imports TensorFlow here, on other backends too.
    with startup.quiet():
        try:
            return keras.models.load_model(path)
        # The archive is whole: what else Keras raises is about what the file says.
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise UsageError(f"{path} is not a model of this program: {reason}") from error


def check(path):
    """Raises `UsageError` where `path` is not a whole `.keras` file. Does not import Keras."""
    problem = _problem(Path(path))
    if problem:
        raise UsageError(f"{path} {problem}. Copy it again, or train again with another --output.")


def _problem(path):
    """What is wrong with an archive, or None."""
    try:
        with open(path, "rb") as file:
            start = file.read(512)
            size = os.fstat(file.fileno()).st_size
        if not start:
            return "is empty"
        if not start.strip(b"\0"):
            return f"holds zeros: its {size:,} bytes were never written"
        if start.lstrip().startswith(b"<"):
            return "is a web page, not a Keras model"
        if not start.startswith(b"PK"):
            return "is not a Keras model"
        if not zipfile.is_zipfile(path):
            return f"is cut short: its {size:,} bytes are the beginning of a Keras model"
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
            if member is not None:
                return f"is damaged: the checksum of {member} is wrong"
            if "config.json" not in archive.namelist():
                return "is not a Keras model: it has no config.json"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        return f"is damaged: {error}"
    return None


def check_texts(texts, what):
    """Raises `UsageError` where one of the `texts` of a command line is meant as a folder.

    A word that is also the name of a folder is a text, and a line on standard error says so.

    Args:
        texts: the arguments after the folder.
        what: what each of them should be, such as "a sentence".
    """
    for text in texts:
        named = os.path.exists(os.path.join(text, run_directory.FIGURES))
        is_folder = os.path.isdir(text)
        if named or (is_folder and (os.sep in text or text in (os.curdir, os.pardir))):
            raise UsageError(
                f"{text!r} is a folder, and was given as {what}. Is it meant as the folder of a "
                "run? Only one can be given, and before the texts."
            )
        if is_folder:
            print(f"{text!r} is taken as {what}, and is a folder too.", file=sys.stderr)
