"""`enable_lora`: low-rank adapters in the projections of a model, and nothing else that trains."""

import functools
import re
from collections.abc import Sequence

import keras

from keras_attention import saving
from keras_attention.core import keras_private
from keras_attention.sequences import shapes

# The properties of attention layers and of `FeedForward` that are projections.
_ROLES = ("query", "key", "value", "output", "gate", "intermediate")
PROJECTIONS = tuple(f"{role}_dense" for role in _ROLES)


def enable_lora(
    model: keras.Layer,
    rank: int,
    alpha: float | None = None,
    projections: Sequence[str] = ("query_dense", "value_dense"),
) -> None:
    r"""Adds low-rank adapters to projections of a model, and freezes all its other weights.

    `W + (alpha / rank) · A B` takes the place of a kernel W (Hu et al. 2021, equation 3). A is
    random and B is 0, so outputs are the same until the adapters are trained. The adapters are
    those of Keras's `Dense` and `EinsumDense`: of a kernel with several axes, A has all but the
    last one, so the heads of a query have one matrix A each, and share B.

    Layers that get the output of `model`, such as a head, are not frozen. Compile afterwards.

    `save` and `convert.to_huggingface` write kernels with their adapters added: what they write
    loads as a model without adapters, with equal outputs, all of whose weights are trained, and the
    state of an optimizer of adapters is not written. Keras quantizes the sums of a quantized model
    again, so its outputs change a little, or in int4 more.

    Args:
        model: a built Keras model or layer, such as a result of `convert.from_huggingface`.
        rank: columns of A, and rows of B.
        alpha: the multiplier's numerator; `rank` by default.
        projections: which of the layers' projections: "query_dense", "key_dense", "value_dense"
            and "output_dense" of attention; "intermediate_dense", "gate_dense" and "output_dense"
            of `FeedForward`. Layers without one are skipped, and so are the experts of a mixture.

    Raises:
        TypeError: `model` is not a layer.
        ValueError: a number or a name is not as described, or the model is not built, has no such
            projection, or has adapters.

    >>> import keras, keras_attention
    >>> from keras_attention import Embeddings, Encoder, ScaledEmbedding, TransformerBlock
    >>> model = Encoder([TransformerBlock(32, 2)], Embeddings(ScaledEmbedding(100, 16)))
    >>> model.build((None, None))
    >>> keras_attention.enable_lora(model, rank=4)
    >>> [weight.name for weight in model.trainable_variables]
    ['lora_kernel_a', 'lora_kernel_b', 'lora_kernel_a', 'lora_kernel_b']
    """
    rank = shapes.check_count("rank", rank)
    alpha = shapes.check_optional_positive("alpha", alpha)
    chosen = [shapes.check_choice("projections", name, PROJECTIONS) for name in projections]
    saving.check_layer("model", model)
    found = [
        layer
        for owner in (model, *keras_private.sublayers(model))
        if isinstance(owner, saving.ConfigurableLayer)
        for name in chosen
        if (layer := getattr(owner, name, None)) is not None
    ]
    if not found:
        raise ValueError(
            "`model` must be built, and have one of the `projections`. "
            f"Received: {model!r}, projections={tuple(chosen)}"
        )
    if any(layer.lora_enabled for layer in found):
        raise ValueError(f"`model` must have no adapters yet. Received: {model!r} with adapters")
    for variable in model.variables:
        variable.trainable = False
    for layer in found:
        layer.enable_lora(rank, lora_alpha=alpha)


def _without_adapters(save_own_variables):
    """A method that saves nothing of an optimizer of adapters, which the file does not have."""

    @functools.wraps(save_own_variables)
    def save_those_of_the_file(self, store):
        if not any(_OF_ADAPTER.search(variable.path) for variable in self.variables):
            save_own_variables(self, store)

    return save_those_of_the_file


# A variable of an optimizer that belongs to a `lora_kernel_a` or the like of Keras's layers.
_OF_ADAPTER = re.compile("_lora_(kernel|embeddings)_[ab]_")
keras_private.replace_saving_of_optimizers(_without_adapters)
