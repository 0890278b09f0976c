"""Layers, arrays and calls that rows of several modules need."""

import pathlib
import sys
import tempfile
from unittest import mock

import keras
import numpy as np

import keras_attention as ka
from keras_attention import ops

B, T, S, D = 2, 3, 5, 4
GRUCell = keras.layers.GRUCell


def zeros(*shape, dtype="float32"):
    return keras.ops.zeros(shape, dtype)


def ints(*shape):
    return np.zeros(shape, "int32")


def true(*shape):
    return np.ones(shape, bool)


def symbol(*shape, dtype=None):
    return keras.Input(shape, dtype=dtype)


X, Y = np.zeros((B, T, D), "float32"), np.zeros((B, S, D), "float32")


def heads(query=(B, T, 2, D), key=(B, S, 2, D), value=(B, S, 2, D)):
    return zeros(*query), zeros(*key), zeros(*value)


def attend(**given):
    """A call of the function; `query`, `key` and `value` are shapes."""
    shapes = {name: given.pop(name) for name in ("query", "key", "value") if name in given}
    return ops.attend(*heads(**shapes), **given)


def over(x=X, num_heads=2, key_dim=4, slots=(), **given):
    """A call of self-attention that is made with `slots`."""
    return ka.SelfAttention(num_heads, key_dim, **dict(slots))(x, **given)


def built(layer, *shapes):
    layer.build(*shapes or (X.shape,))
    return layer


def multi_head(**kwargs):
    return built(ka.MultiHeadAttention(2, 4, **kwargs), X.shape, Y.shape)


def block(**options):
    return ka.TransformerBlock(8, 2, **options)


def decoder(causal=True):
    return built(block(causal=causal, cross_attention=True), X.shape, Y.shape)


def without(module, call):
    """The call where a package that it needs is not installed."""

    def run():
        with mock.patch.dict(sys.modules, {module: None}):
            call()

    return run


def in_folder(files, call):
    """The call of a folder with files of text or bytes."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            content = content.encode() if isinstance(content, str) else content
            pathlib.Path(folder, name).write_bytes(content)
        return call(folder)
