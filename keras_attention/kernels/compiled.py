"""A function of arrays and of a layer's variables, as one compiled program, and its errors."""

import threading

import keras

from keras_attention import shapes

# What `raise_where` is given while a program is traced.
_tracing = threading.local()


def raise_where(bad, message):
    """Raises a ValueError where `bad`, a boolean scalar, is true.

    At once where that is known; after each run of the program where a `compiled_function` is being
    traced. Programs of anyone else, and loops within a program, cannot raise.
    """
    known = shapes.visible_values(bad)
    if known is None:
        getattr(_tracing, "notes", []).append((_place(), message, bad))
    elif known:
        raise ValueError(message)


def _noted(function, *arrays):
    """What `function` returns, and by message what it gave to `raise_where` unknown as yet."""
    outer = getattr(_tracing, "notes", [])
    _tracing.notes = []
    try:
        outputs, here, errors = function(*arrays), _place(), {}
        for place, message, bad in _tracing.notes:
            # What a loop inside of the function computes does not leave the loop.
            if place == here:
                errors[message] = keras.ops.logical_or(errors.get(message, False), bad)
        return outputs, errors
    finally:
        _tracing.notes = outer


def compiled_function(function, layer):
    """`function`, compiled for each shape; see `generation.compiled`, which is the door to this."""
    program = _program(function, layer)

    def call(*arrays):
        arrays = keras.tree.map_structure(keras.ops.convert_to_tensor, arrays)
        outputs, errors = program(*arrays)
        for message, bad in errors.items():
            raise_where(bad, message)
        return outputs

    return call


if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    def _program(function, layer):
        # What other backends cannot read from a function's source is not read here either.
        return tf.function(
            lambda *arrays: _noted(function, *arrays), jit_compile=True, autograph=False
        )

    def _place():
        return tf.compat.v1.get_default_graph()

elif keras.config.backend() == "jax":
    import jax
    from jax.extend.core import get_opaque_trace_state

    def _place():
        return get_opaque_trace_state(convention="keras_attention")

    class _program:
        """Variables go in as arguments and come out as results, since JAX knows no others."""

        def __init__(self, function, layer):
            self.function = function
            self.variables = list(layer.variables)
            self.program = jax.jit(self._pure)

        def __call__(self, *arrays):
            known, values = -1, ()
            # Tracing may find more. JAX keeps what it traced, so none of this is done twice.
            while known < len(self.variables):
                known, values = len(self.variables), [x.value for x in self.variables]
                self.program.trace(values, arrays)
            outputs, errors, changed = self.program(values, arrays)
            for place, value in changed.items():
                self.variables[place].assign(value)
            return outputs, errors

        def _pure(self, values, arrays):
            with _Scope(zip(self.variables, values, strict=True)) as scope:
                outputs, errors = _noted(self.function, *arrays)
            # They would be constants of this program, which is then not used.
            self.variables += scope.unlisted.values()
            return (
                outputs,
                errors,
                {
                    place: scope.get_current_value(variable)
                    for place, variable in enumerate(self.variables)
                    if id(variable) in scope.changed
                },
            )

    class _Scope(keras.StatelessScope):
        """Notes which variables are changed, and which are used that it was given no value of."""

        def __init__(self, state_mapping):
            super().__init__(state_mapping)
            self.changed, self.unlisted = set(), {}

        def get_current_value(self, variable):
            value = super().get_current_value(variable)
            if value is None:
                self.unlisted[id(variable)] = variable
            return value

        def add_update(self, update):
            self.get_current_value(update[0])
            self.changed.add(id(update[0]))
            super().add_update(update)

else:
    import torch

    def _program(function, layer):
        return torch.no_grad()(lambda *arrays: _noted(function, *arrays))

    def _place():
        return None
