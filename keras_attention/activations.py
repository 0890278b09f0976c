"""Activations of published models that Keras has no name for."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core.hints import Activation, Tensor

__all__ = ["gelu_tanh", "get", "quick_gelu", "relu_squared"]


@saving.register
def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by a hyperbolic tangent (Hendrycks & Gimpel 2016), as in GPT-2 and Gemma.

    `x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))`. The activation "gelu" of Keras is the exact one.

    >>> import keras
    >>> from keras_attention import activations
    >>> round(float(activations.gelu_tanh(keras.ops.ones(()))), 4)
    0.8412
    """
    return ops.gelu(x, approximate=True)


@saving.register
def quick_gelu(x: Tensor) -> Tensor:
    """`x · sigmoid(1.702 x)` (Hendrycks & Gimpel 2016), as in CLIP.

    >>> import keras
    >>> from keras_attention import activations
    >>> round(float(activations.quick_gelu(keras.ops.ones(()))), 4)
    0.8458
    """
    return x * ops.sigmoid(1.702 * x)


@saving.register
def relu_squared(x: Tensor) -> Tensor:
    """`max(x, 0)²` (So et al. 2021, "Primer").

    >>> import keras
    >>> from keras_attention import activations
    >>> float(activations.relu_squared(keras.ops.full((), 3.0)))
    9.0
    """
    return ops.square(ops.relu(x))


NAMES = {function.__name__: function for function in (gelu_tanh, quick_gelu, relu_squared)}


def get(activation: Activation | None) -> Callable[..., Any]:
    """The activation that `activation` names: one of these, or what `keras.activations.get` gives.

    >>> from keras_attention import activations
    >>> activations.get("quick_gelu").__name__
    'quick_gelu'
    """
    if isinstance(activation, str) and activation in NAMES:
        return NAMES[activation]
    return keras.activations.get(activation)
