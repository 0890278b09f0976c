"""Imports Keras and its backend without the lines that their libraries print."""

import contextlib
import logging
import os
import sys
import tempfile

from examples.errors import UsageError


@contextlib.contextmanager
def quiet():
    """In this block nothing reaches standard error, unless the block raises.

    A `UsageError` says all there is to say by itself.

    TensorFlow's libraries write there while they are imported, before any setting of theirs counts.
    """
    # For what TensorFlow prints later. Python's own warnings are not changed.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
            # It warns of each program that is compiled for another length.
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
        except UsageError:
            raise
        except BaseException:
            os.dup2(saved, 2)
            kept.seek(0)
            with contextlib.suppress(OSError):
                os.write(2, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def shout(warning):
    """Prints what nobody should miss, between two rules, to standard error."""
    rule = "*" * 80
    print(f"{rule}\n{warning}\n{rule}", file=sys.stderr, flush=True)
