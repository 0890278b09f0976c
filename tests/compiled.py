"""Calls of layers that are quick on every backend, for the tests."""

import functools

import keras

from keras_attention.sequences import masks

# The programs that Keras makes of a model. On JAX, compiling none is computing eagerly, and on
# PyTorch, compiling takes most of a minute a model, and is Keras's own affair.
JIT_MODES = {"tensorflow": [False, True], "jax": [True], "torch": [False]}[keras.backend.backend()]


def quick(function):
    """A function of tensors and nests of them. Layers that it calls must be built.

    JAX would compile each operation on its own, and so takes longest for a single call: there the
    function is compiled as a whole.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


def program(function, **options):
    """The same as a graph on TensorFlow, with options of `tf.function`."""
    if keras.backend.backend() != "tensorflow":
        return quick(function)
    import tensorflow as tf

    return tf.function(function, autograph=False, **options)


def compiled(function, *arrays):
    """What a function of arrays gives, by `quick`."""
    return quick(function)(*map(keras.ops.convert_to_tensor, arrays))


class Program:
    """A function that calls a layer, compiled on JAX as `compiled` is, once for each kind of call.

    Args:
        function: called with arrays, nests of them, or None, and with words and flags by name. The
            first argument may carry a mask.
        layer: what it calls, built; its variables may change between calls.
    """

    def __init__(self, function, layer):
        self._function, self._layer, self._made = function, layer, {}
        # What the last call added.
        self.losses = []

    def __call__(self, *args, **given):
        if keras.backend.backend() != "jax":
            outputs = self._function(*args, **given)
            self.losses = self._layer.losses
            return outputs
        run, arrays = self._traceable(args, given)
        outputs, carried, self.losses = run(*arrays)
        for tensor, mask in zip(keras.tree.flatten(outputs), carried, strict=True):
            masks.carry(tensor, mask)
        return outputs

    def traced(self, *args, **given):
        """What has the shapes and dtypes of the outputs, of which JAX compiles nothing."""
        if keras.backend.backend() != "jax":
            return self._function(*args, **given)
        run, arrays = self._traceable(args, given)
        return run.eval_shape(*arrays)[0]

    def _traceable(self, args, given):
        import jax

        words = {name: x for name, x in given.items() if isinstance(x, (str, bool))}
        arrays = {name: x for name, x in given.items() if name not in words}
        key = tuple(sorted(words.items()))
        if key not in self._made:
            self._made[key] = jax.jit(functools.partial(self._run, words))
        mask = masks.implicit(args[0])
        return self._made[key], ([v.value for v in self._layer.variables], args, mask, arrays)

    def _run(self, words, values, args, mask, arrays):
        if mask is not None:
            masks.carry(args[0], mask)
        state = list(zip(self._layer.variables, values, strict=True))
        with keras.StatelessScope(state, collect_losses=True) as scope:
            outputs = self._function(*args, **arrays, **words)
        return outputs, list(map(masks.implicit, keras.tree.flatten(outputs))), scope.losses
