"""`compiled`: one compiled program of a function that generates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import keras

from keras_attention.kernels.compiled import compiled_function

Result = TypeVar("Result")


def compiled(function: Callable[..., Result], layer: keras.Layer) -> Callable[..., Result]:
    """A function of arrays as one compiled program for each of their shapes and dtypes.

    XLA on TensorFlow, `jax.jit` on JAX. On PyTorch the function itself, without gradients, in
    which a step of each generation loop is recorded once, and replayed. The program reads the
    variables at every call: weights trained or loaded since apply without recompilation.
    Variables that it assigns, such as the state of a `keras.random.SeedGenerator`, are updated.

    Args:
        function: from tensors to tensors, either in any nested structure, such as a call of
            `greedy`, `sample` or `beam_search` with all computations before it.
        layer: the built `keras.Layer`, or model, that `function` calls. On JAX, variables of
            others that it reads are found by tracing it twice; on PyTorch, a step that reads
            such variables, or closes over other arrays, is recorded in every call.

    Returns:
        A function with the same arguments (NumPy arrays are accepted) and results.

    Raises:
        TypeError: `function` is not callable, or `layer` no layer.
        ValueError: `layer` is not built; or, after the program has run, a generated row is
            lost, as described in `greedy`.

    Warns:
        UserWarning: on PyTorch, a step reads values of tensors, so that it cannot be recorded.

    Example:

    >>> import keras
    >>> from keras_attention import generation
    >>> model = keras.Sequential([keras.layers.Embedding(10, 8), keras.layers.Dense(10)])
    >>> model.build((None,))
    >>> def step(tokens, cache):
    ...     return model(tokens), cache
    >>> write = generation.compiled(
    ...     lambda tokens: generation.greedy(step, tokens, (), max_tokens=5), model
    ... )
    >>> write([1, 2, 3]).tokens.shape
    (3, 5)
    """
    if not callable(function):
        raise TypeError(f"`function` must be a function of arrays. Received: {function!r}")
    if not isinstance(layer, keras.Layer):
        raise TypeError(f"`layer` must be a Keras layer or model. Received: {layer!r}")
    if not layer.built:
        raise ValueError(
            f"`layer` must be built, so that its variables exist. Received: {layer!r}, not built"
        )
    return compiled_function(function, layer)
