"""Every use of what Keras keeps to itself, with the reason and the public way that was tried.

tests/test_keras_private.py fails with the name of what Keras has moved.
"""

import keras
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell
from keras.src.random.seed_generator import draw_seed

__all__ = [
    "DropoutRNNCell",
    "draw_seed",
    "get_keras_mask",
    "saving_a_model",
    "set_keras_mask",
    "torch_device",
    "uncast_variables",
]

# The two numbers that a seed or a `keras.random.SeedGenerator` gives a random function. Keras's own
# functions call it. `SeedGenerator.next` is public, but an integer seed has no such method, and
# Keras's `convert`ed integers draw from numbers of their own.
draw_seed = draw_seed

# The base of Keras's recurrent cells with dropout. `keras.layers.RNN` asks cells of this class, and
# of no other, to prepare what its loop closes over; there is no public hook before the loop.
DropoutRNNCell = DropoutRNNCell


def get_keras_mask(tensor):
    """The mask that a tensor carries, or None.

    `tensor._keras_mask` is what Keras sets; a public accessor exists for neither reading nor
    writing it.
    """
    return backend.get_keras_mask(tensor)


def set_keras_mask(tensor, mask):
    """Lets a tensor carry a mask, as Keras does with what `compute_mask` returns.

    `compute_mask` is the public way, but it sees the layer's inputs and not what `call` found out
    about them, and in a functional model it becomes an operation of its own.
    """
    backend.set_keras_mask(tensor, mask)


def uncast_variables():
    """A scope in which variables are read as they are stored, also in a layer that computes in half
    precision. `autocast=False` is public, but for the layer's inputs as well as its variables.
    """
    return backend.AutocastScope(None)


def saving_a_model():
    """Whether `get_config` was called for a model that Keras is saving, which shares objects.

    `keras.saving` has `ObjectSharingScope`, but nothing public says whether one is open.
    """
    return global_state.get_global_attribute("shared_objects/id_to_config_map") is not None


def torch_device():
    """The device that Keras puts PyTorch's tensors on; `keras.config` does not say."""
    return keras.src.backend.torch.core.get_device()
