"""`attention_gradients`: what a change of each weight would change in a model's output."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.core.hints import Tensor, Tensors
from keras_attention.inspection.measures import Gradients
from keras_attention.layers import traits
from keras_attention.layers.base import BaseAttention
from keras_attention.visualization import collect


def attention_gradients(
    model: keras.Layer,
    inputs: Tensors,
    target: Callable[[Any], Tensor] | None = None,
    **kwargs: Any,
) -> dict[str, np.ndarray]:
    r"""Weight times gradient, `w · ∂ target / ∂ w`, of every attention weight of a model.

    A weight can be large and change nothing, where values are small or later layers ignore them.
    This product estimates by how much the target would fall without the weight (Jain & Wallace
    2019 compare weights with gradients; Barkan et al. 2021 multiply them). It is positive where
    attention speaks for the target, and negative where it speaks against. The weights of
    `SlotAttention` are here those of its means, which sum to 1 over the inputs.

    Args:
        model: as in `collect_attention`; its attention layers are those of this package, and
            `MultiHeadAttention`, `GroupQueryAttention`, `Attention` and `AdditiveAttention` of
            Keras.
        inputs, **kwargs: as in `model(inputs, **kwargs)`.
        target: a function from the model's output to numbers, which are summed. By default the
            largest of the last axis: the class that the model predicts.

    Returns:
        A dict of NumPy arrays (B, H, T, S), float32, with the keys of `collect_attention`. They are
        0 where masked. `head_importance` sums them to a number for each head; the positive part,
        `np.maximum(g, 0)`, can be given to `attention_rollout`. The model does not change.

    Raises:
        TypeError: `model` is no layer, or an attention layer in it is of another class.
        ValueError: the model is not built, no attention layer was called, or one attends over more
            than one axis.

    >>> import keras, keras_attention
    >>> from keras_attention.inspection import attention_gradients
    >>> x = keras.Input((None, 8))
    >>> y = keras_attention.TransformerBlock(16, 2, name="block")(x)
    >>> y = keras_attention.AttentionPooling(name="pooling")(y)
    >>> model = keras.Model(x, keras.layers.Dense(3)(y))
    >>> found = attention_gradients(model, keras.random.normal((1, 4, 8)))
    >>> for name, array in found.items():
    ...     print(name, array.shape)
    block/attention (1, 2, 4, 4)
    pooling/attention (1, 1, 1, 4)
    """
    weights = collect.collect_attention(model, inputs, **kwargs)
    # The largest number of each row.
    target = target or functools.partial(ops.max, axis=-1)
    layers = collect.attention_layers(model)
    layers = {name: layer for name, layer in layers.items() if name in weights}

    def total(*factors):
        """The target, where each weight is multiplied by its factor."""
        # Of each layer, those of its calls in turn, and None for later ones.
        calls = list(zip(map(_of_call, weights), factors, strict=True))
        factors_left = {name: iter([x for of, x in calls if of == name]) for name in layers}

        def factor_of(name):
            return next(factors_left[name], None)

        scopes = []
        for name, layer in layers.items():
            if not isinstance(layer, BaseAttention):
                # Keras's layers have weights on the way only where they return them.
                replacement = keras_private.method_of_weights(layer)
                if replacement is None:
                    raise TypeError(
                        "Attention layers must be of this package, or `MultiHeadAttention`, "
                        "`GroupQueryAttention`, `Attention` or `AdditiveAttention` of Keras. "
                        f"Received: {name!r} of class {type(layer).__name__}"
                    )
                method = replacement(functools.partial(factor_of, name))
                scopes.append(collect.replaced(layer, *method))
        return collect.inference(
            functools.partial(model, inputs, **kwargs),
            layers,
            factor=factor_of,
            scopes=scopes,
            target=lambda output: ops.sum(target(output)),
        )

    for name, array in weights.items():
        if array.ndim != 4:
            raise ValueError(
                "Layers must attend over one axis of positions. Received: weights of "
                f"{name!r} of shape {array.shape}"
            )
    ones = [ops.ones(array.shape, "float32") for array in weights.values()]
    value, pull = backend.vjp(total, ones)
    pulled = zip(weights, pull(ops.ones_like(value)), strict=True)
    found = {name: ops.convert_to_numpy(x).astype("float32") for name, x in pulled}
    normed = {name for name, layer in layers.items() if traits.of(layer).norms_heads}
    return Gradients(found, normed={name for name in weights if _of_call(name) in normed})


def _of_call(name):
    """The name of a layer by that of one of its calls."""
    return name.partition(" (call ")[0]
