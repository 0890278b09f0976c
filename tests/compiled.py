"""Calls of layers that are quick on every backend, for the tests."""

import keras


def compiled(function, *arrays):
    """What a function of arrays gives. Layers that it calls must be built.

    JAX would compile each operation on its own, and so takes longest for a single call: there the
    function is compiled as a whole.
    """
    if keras.backend.backend() == "jax":
        import jax

        function = jax.jit(function)
    return function(*map(keras.ops.convert_to_tensor, arrays))
