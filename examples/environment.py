"""What a run was made with: the versions of packages, and the machine."""

import importlib.metadata
import os
import platform

import keras

import keras_attention


def versions(*packages):
    """The versions of Python, Keras, its backend, NumPy, this package and `packages`."""
    names = (keras.backend.backend(), "keras", "numpy", *packages)
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
        "keras_attention": keras_attention.__version__,
    }


def machine():
    """The backend, and the processor that it ran on."""
    return {
        "backend": keras.backend.backend(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
    }
