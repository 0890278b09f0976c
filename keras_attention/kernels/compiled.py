"""A function of arrays and of a layer's variables, as one compiled program."""

import keras


def compiled_function(function, layer):
    """`function`, compiled for each shape; see `generation.compiled`, which is the door to this."""
    program = _program(function, layer)

    def call(*arrays):
        return program(*keras.tree.map_structure(keras.ops.convert_to_tensor, arrays))

    return call


if keras.config.backend() == "tensorflow":
    import tensorflow as tf

    def _program(function, layer):
        # What other backends cannot read from a function's source is not read here either.
        return tf.function(lambda *arrays: function(*arrays), jit_compile=True, autograph=False)

elif keras.config.backend() == "jax":
    import jax

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
            outputs, changed = self.program(values, arrays)
            for place, value in changed.items():
                self.variables[place].assign(value)
            return outputs

        def _pure(self, values, arrays):
            with _Scope(zip(self.variables, values, strict=True)) as scope:
                outputs = self.function(*arrays)
            # They would be constants of this program, which is then not used.
            self.variables += scope.unlisted.values()
            return outputs, {
                place: scope.get_current_value(variable)
                for place, variable in enumerate(self.variables)
                if id(variable) in scope.changed
            }

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
        return torch.no_grad()(function)
