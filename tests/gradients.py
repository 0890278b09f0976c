"""Gradients on whatever backend is running, for the tests."""

import keras
import numpy as np


def gradients(function, arrays):
    """The gradients of a scalar function of some arrays, with respect to each of them.

    Args:
        function: takes as many tensors as there are arrays and returns a tensor. Unless that has
            no axes, its gradient is that of the sum of its elements. A tuple or list of tensors
            counts as the sum of all. Layers that it calls must be built. It may be traced, and what
            it does to variables (the state of a dropout's seed) may be forgotten.
        arrays: NumPy arrays or tensors of a float dtype, which the tensors are made from.

    Returns:
        A list of NumPy arrays, one for each of `arrays`, of its shape (and of its dtype where NumPy
        has it, float32 for bfloat16). Zeros where `function` does not depend on one.

    For a layer's weights see `weight_gradients`.
    """
    tensors = [keras.ops.convert_to_tensor(array) for array in arrays]
    return _as_numpy(_BACKENDS[keras.backend.backend()](lambda *x: total(function(*x)), tensors))


def weight_gradients(layer, function, arrays=()):
    """The gradients of a scalar function with respect to a layer's weights, and to some arrays.

    Args:
        layer: a built layer or model; its trainable variables are what is differentiated by.
        function, arrays: as in `gradients`; `function` calls `layer`.

    Returns:
        Two lists of NumPy arrays: one in the order of `layer.trainable_variables`, one of `arrays`.
    """
    variables = layer.trainable_variables
    count = len(variables)

    def of_values(*values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values[:count], strict=True))):
            return function(*values[count:])

    found = gradients(of_values, [*(variable.value for variable in variables), *arrays])
    return found[:count], found[count:]


def added_losses(function):
    """The sum of the losses that layers add while `function` runs, for use inside `gradients`."""
    with keras.StatelessScope(collect_losses=True) as scope:
        function()
    return sum(scope.losses)


def total(outputs):
    """The sum of all elements, in float32 at least, so that float16 sums cannot overflow."""
    if isinstance(outputs, (tuple, list)):
        return sum(total(output) for output in outputs)
    if keras.backend.standardize_dtype(outputs.dtype) != "float64":
        outputs = keras.ops.cast(outputs, "float32")
    return keras.ops.sum(outputs)


def _tensorflow(function, tensors):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        whole = function(*tensors)
    return tape.gradient(whole, tensors, unconnected_gradients="zero")


def _jax(function, tensors):
    import jax

    def pure(*tensors):
        with keras.StatelessScope():
            return function(*tensors)

    # Compiled as a whole, since JAX would else compile every operation on its own.
    return jax.jit(jax.grad(pure, argnums=tuple(range(len(tensors)))))(*tensors)


def _torch(function, tensors):
    import torch

    leaves = [tensor.detach().clone().requires_grad_(True) for tensor in tensors]
    whole = function(*leaves)
    found = [None] * len(leaves)
    if whole.requires_grad:
        found = torch.autograd.grad(whole, leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    ]


_BACKENDS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


def _as_numpy(tensors):
    arrays = []
    for tensor in tensors:
        if keras.backend.standardize_dtype(tensor.dtype) == "bfloat16":
            tensor = keras.ops.cast(tensor, "float32")
        arrays.append(np.array(keras.ops.convert_to_numpy(tensor)))
    return arrays
