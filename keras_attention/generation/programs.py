"""`compiled`: one program of a function that generates; and errors that a program finds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.generation.generated import inside
from keras_attention.sequences import shapes

# The `notes` of a program that is being traced: whether rows are lost, unknown yet, with the trace.
_tracing = threading.local()


def check_lost(lost):
    """Raises if a row is lost, which is a boolean tensor: its scores are NaN.

    At once if they are known; after each run of the program if a `compiled` one is being traced.
    Other programs, and loops within a program, cannot raise.
    """
    known = shapes.visible_values(lost)
    if known is None:
        getattr(_tracing, "notes", []).append((backend.trace_id(), lost))
    elif known:
        raise ValueError(
            "`step` must return logits without NaN and +inf. Received such logits: a cache has "
            "fewer slots than a row has tokens, those of the prompt and `max_tokens` more, as "
            "`make_cache(batch_size, length)` or `start(…, max_tokens)` was told; a token is not "
            "in the vocabulary; or weights or states are NaN"
        )


Result = TypeVar("Result")


def compiled(function: Callable[..., Result], layer: keras.Layer) -> Callable[..., Result]:
    """A function of arrays as one compiled program for each of their shapes and dtypes.

    XLA on TensorFlow, `jax.jit` on JAX. On PyTorch the function itself, without gradients, in
    which a step of each generation loop is recorded once, and replayed; and the whole function, if
    it has one loop, reads no values and changes no arrays. The program reads the
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
    saving.check_built("layer", layer)

    def noted(*arrays):
        """The result, the caches in it, which it is no tree of, and which rows are lost."""
        outer = getattr(_tracing, "notes", [])
        _tracing.notes = []
        try:
            outputs, trace = function(*arrays), backend.trace_id()
            caches = [found.cache for found in inside(outputs)]
            # Values computed in a loop inside the function do not leave the loop.
            return outputs, caches, [lost for origin, lost in _tracing.notes if origin == trace]
        finally:
            _tracing.notes = outer

    program = backend.compile(noted, layer)

    def call(*arrays):
        outputs, caches, lost = program(*keras.tree.map_structure(ops.convert_to_tensor, arrays))
        for rows in lost:
            check_lost(rows)
        for found, cache in zip(inside(outputs), caches, strict=True):
            found.cache = cache
        return outputs

    return call
