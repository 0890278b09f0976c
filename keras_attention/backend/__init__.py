"""What the package needs from a framework beyond `keras.ops`: `backend`, documented by `Backend`.

Only this folder knows which framework runs. Adding one is adding a file with the same members.
"""

import importlib

import keras

from keras_attention.backend.interface import Backend

__all__ = ["Backend", "backend"]

backend: Backend = importlib.import_module(f"keras_attention.backend.{keras.config.backend()}")
