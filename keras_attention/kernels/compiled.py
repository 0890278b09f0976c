"""A function of arrays and of a layer's variables, as one compiled program, and its errors."""

import threading

import keras

from keras_attention.backend import backend
from keras_attention.sequences import shapes

# The arguments of `raise_where` while a program is traced.
_tracing = threading.local()


def raise_where(bad, message):
    """Raises a ValueError if `bad`, a boolean scalar, is true.

    At once if its value is known; after each run of the program if a `compiled_function` is being
    traced. Other programs, and loops within a program, cannot raise.
    """
    known = shapes.visible_values(bad)
    if known is None:
        getattr(_tracing, "notes", []).append((backend.trace_id(), message, bad))
    elif known:
        raise ValueError(message)


def compiled_function(function, layer):
    """`function`, compiled for each shape; see the public `generation.compiled`."""

    def noted(*arrays):
        """The result, and by message the unknown values that were passed to `raise_where`."""
        outer = getattr(_tracing, "notes", [])
        _tracing.notes = []
        try:
            outputs, trace, errors = function(*arrays), backend.trace_id(), {}
            for origin, message, bad in _tracing.notes:
                # Values computed in a loop inside the function do not leave the loop.
                if origin == trace:
                    errors[message] = keras.ops.logical_or(errors.get(message, False), bad)
            return outputs, errors
        finally:
            _tracing.notes = outer

    program = backend.compile(noted, layer)

    def call(*arrays):
        arrays = keras.tree.map_structure(keras.ops.convert_to_tensor, arrays)
        outputs, errors = program(*arrays)
        for message, bad in errors.items():
            raise_where(bad, message)
        return outputs

    return call
