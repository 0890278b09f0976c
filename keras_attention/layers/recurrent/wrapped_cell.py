"""The Keras cell that an `AttentionCell` wraps: its states, flat or not, and its dropout."""

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core import keras_private


def get(cell, refused):
    """The cell to wrap, from the argument or its saved config; without a `refused` inside."""
    cell = saving.deserialize(cell)
    if (
        isinstance(cell, keras.layers.RNN)
        or not {"call", "state_size"} <= set(dir(cell))
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


def output_size(cell):
    """Features of the output, by default those of the first state."""
    size = getattr(cell, "output_size", None)
    return keras.tree.flatten(cell.state_size)[0] if size is None else size


def pack(cell, states):
    """Flat states in the structure of the cell."""
    if not keras.tree.is_nested(cell.state_size):
        return list(states)
    return keras.tree.pack_sequence_as(list(cell.state_size), list(states))


def draw_dropout(cell, inputs, states):
    """Lets a cell, or each of a stack, draw its dropout masks for inputs and states like these."""
    if isinstance(cell, keras.layers.StackedRNNCells):
        for part, state in zip(cell.cells, states, strict=True):
            draw_dropout(part, inputs, state)
            inputs = ops.zeros((ops.shape(inputs)[0], output_size(part)), inputs.dtype)
    elif isinstance(cell, keras_private.DropoutRNNCell):
        cell.get_dropout_mask(inputs)
        cell.get_recurrent_dropout_mask(keras.tree.flatten(states)[0])


def reset_dropout(cell):
    """Lets a cell, or each of a stack, discard its dropout masks."""
    for leaf in leaves(cell):
        if isinstance(leaf, keras_private.DropoutRNNCell):
            leaf.reset_dropout_mask()
            leaf.reset_recurrent_dropout_mask()
