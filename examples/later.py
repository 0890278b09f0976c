"""Modules that are imported, quietly, when they are first used: `--help` answers at once."""

import contextlib
import importlib
import os
import sys


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


class Later:
    """A module, which is imported when its first attribute is asked for."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        with contextlib.nullcontext() if self._name in sys.modules else quiet():
            module = importlib.import_module(self._name)
        return getattr(module, attribute)


keras, keras_attention = Later("keras"), Later("keras_attention")
# These need Keras for their classes.
imdb_ngrams, texts = Later("examples.imdb_ngrams"), Later("examples.texts")
training = Later("examples.training")
