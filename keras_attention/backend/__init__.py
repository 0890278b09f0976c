"""What the package needs from a framework beyond `keras.ops`: `backend`, documented by `Backend`.

Only this folder knows which framework runs. To add one, add a file with a subclass of `Backend`.
"""

import importlib

import keras

from keras_attention.backend.interface import Backend

__all__ = ["Backend", "backend"]

_module = importlib.import_module(f"keras_attention.backend.{keras.config.backend()}")
backend: Backend = _module.backend
