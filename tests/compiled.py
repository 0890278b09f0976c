"""Calls of layers that are quick on every backend, for the tests."""

import keras

# The programs that Keras makes of a model. On JAX, compiling none is computing eagerly, and on
# PyTorch, compiling takes most of a minute a model, and is Keras's own affair.
JIT_MODES = {"tensorflow": [False, True], "jax": [True], "torch": [False]}[keras.backend.backend()]


def compiled(function, *arrays):
    """What a function of arrays gives. Layers that it calls must be built.

    JAX would compile each operation on its own, and so takes longest for a single call: there the
    function is compiled as a whole.
    """
    if keras.backend.backend() == "jax":
        import jax

        function = jax.jit(function)
    return function(*map(keras.ops.convert_to_tensor, arrays))
