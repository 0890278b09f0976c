"""The parts of an `AttentionCell`: the cell that it wraps, its attention, and what it remembers."""

from __future__ import annotations

import threading
from typing import Any

import keras

from keras_attention import keras_private, saving
from keras_attention.layers.attention import Attention
from keras_attention.scores import Score

ops = keras.ops


class Memory:
    """A prepared memory: key (B, S, H, K), value (B, S, H, V), mask (B, S) or None."""

    def __init__(self, key, value, mask):
        self.key = key
        self.value = value
        self.mask = mask
        # The value with dropped positions, for training.
        self.dropped = None

    def arrays(self, training):
        """Key, value and mask, as `start_states` has them after the states of the loop."""
        dropped = training and self.dropped is not None
        return [self.key, self.dropped if dropped else self.value, self.mask]


class InThisThread(threading.local):
    """What one call leaves for the next in the same thread, which no other thread sees."""

    # The shape of the last memory.
    memory_shape: Any = None
    # Between the two calls of `keras.layers.RNN` around its loop.
    batch: Any = None
    memory: Any = None

    def __reduce__(self):
        # A copy of a cell is in no loop.
        return InThisThread, ()


class Scratch:
    """State of a cell besides its weights; a separate object, so that Keras does not track it."""

    def __init__(self):
        # Features fed to the wrapped cell in addition to its input, and the sum of both.
        self.fed_size = None
        self.input_size = None
        self.here = InThisThread()
        self._memory_shape: Any = None

    @property
    def memory_shape(self):
        """The shape of the last memory in this thread, or else in any."""
        return self.here.memory_shape or self._memory_shape

    @memory_shape.setter
    def memory_shape(self, shape):
        self.here.memory_shape = self._memory_shape = tuple(shape)


def wrapped_cell(cell, refused):
    """The cell to wrap, from the argument or its saved config; without a `refused` inside."""
    cell = saving.deserialize(cell)
    needed = ("call", "state_size")
    if (
        isinstance(cell, keras.layers.RNN)
        or not all(hasattr(cell, name) for name in needed)
        or any(isinstance(leaf, refused) for leaf in leaves(cell))
    ):
        raise TypeError(
            "`cell` must be a cell for `keras.layers.RNN`, such as `keras.layers.GRUCell(8)`, that "
            f"does not attend itself. Received: cell={cell!r}"
        )
    return cell


def leaves(cell):
    """The cells of a stack, or the cell itself."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        return [leaf for part in cell.cells for leaf in leaves(part)]
    return [cell]


def prepare_dropout(cell, inputs, states):
    """Lets a cell, or each of a stack, draw its dropout masks for inputs and states like these."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        for part, state in zip(cell.cells, states, strict=True):
            prepare_dropout(part, inputs, state)
            size = getattr(part, "output_size", None)
            size = keras.tree.flatten(part.state_size)[0] if size is None else size
            inputs = ops.zeros((ops.shape(inputs)[0], size), inputs.dtype)
    elif isinstance(cell, keras_private.DropoutRNNCell):
        cell.get_dropout_mask(inputs)
        cell.get_recurrent_dropout_mask(keras.tree.flatten(states)[0])


def reset_dropout(cell):
    """Lets a cell, or each of a stack, discard its dropout masks."""
    for leaf in leaves(cell):
        if isinstance(leaf, keras_private.DropoutRNNCell):
            leaf.reset_dropout_mask()
            leaf.reset_recurrent_dropout_mask()


def attention_layer(attention, dtype):
    """The attention layer, from the argument or its saved config."""
    attention = saving.deserialize(attention)
    if isinstance(attention, (str, Score)):
        attention = Attention(score=attention, dtype=dtype)
    if not isinstance(attention, Attention):
        raise TypeError(
            "`attention` must be an Attention layer, a score, or the name of one. "
            f"Received: attention={attention!r} (of type {type(attention).__name__})"
        )
    if attention.normalization.random or attention.scores_regularizer is not None:
        raise ValueError(
            "An AttentionCell takes no normalization that draws random numbers, and no "
            "`scores_regularizer`: a step of a loop can neither draw nor add losses. Received: "
            f"normalization={attention.normalization!r}, "
            f"scores_regularizer={attention.scores_regularizer!r}"
        )
    return attention
