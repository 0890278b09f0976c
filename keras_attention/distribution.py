"""Layouts of models on several devices, for `keras.distribution`."""

import keras

from keras_attention import saving
from keras_attention.core import keras_private
from keras_attention.core.sequence_parallel import SequenceParallel
from keras_attention.layers.blocks.feed_forward import FeedForward
from keras_attention.layers.embeddings.scaled_embedding import ScaledEmbedding
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.models import Logits
from keras_attention.positions import RelativeBias, Shaw

__all__ = ["SequenceParallel", "layout_map"]

ROLES = ("query", "key", "value", "gate", "global_query", "global_key", "global_value")
# The axes to split: heads, inner features, or tokens. By the ends of the weights' paths.
SPLIT = {
    MultiHeadAttention: {
        **{f"{role}/kernel": 1 for role in ROLES},
        **{f"{role}/bias": 0 for role in ROLES},
        **{f"{role}_conv_kernel": 1 for role in ("query", "key", "value")},
        "attention_output/kernel": 0,
        "sink": 0,
    },
    RelativeBias: {"embeddings": 1},
    Shaw: {"key_embeddings": 0, "value_embeddings": 0},
    FeedForward: {
        **{f"{role}/kernel": 1 for role in ("intermediate", "gate")},
        **{f"{role}/bias": 0 for role in ("intermediate", "gate")},
        "output/kernel": 0,
    },
    ScaledEmbedding: {"embeddings": 0},
    keras.layers.Embedding: {"embeddings": 0},
    Logits: {"dense/kernel": 1, "dense/bias": 0, "bias": 0},
}


def layout_map(
    mesh: keras.distribution.DeviceMesh, model: keras.Layer, axis: str = "model"
) -> keras.distribution.LayoutMap:
    """A `keras.distribution.LayoutMap` that splits a model's weights over one axis of a mesh.

    Each device gets part of the heads of a `MultiHeadAttention` and of the inner features of a
    `FeedForward`, both also within `TransformerBlock`: the first projections are split by columns
    and the last by rows, so that a block needs two sums over devices and no other exchange, as in
    Megatron-LM (Shoeybi et al. 2019). Biases by head are split with the heads, embeddings
    (`ScaledEmbedding`, `keras.layers.Embedding`) and `Logits` by tokens. All other weights are
    whole on every device, as are axes that the devices do not divide: grouped key heads that are
    fewer than the devices, for one.

    Weights are found by their paths, so the layout holds for every model of the same names: one
    loaded from a file, or cloned. Paths in a `keras.Sequential` begin with its name. Optimizers
    split their states like the weights.

    Args:
        mesh: the `keras.distribution.DeviceMesh`.
        model: a built `keras.Model`, or layer.
        axis: the name of the mesh's axis.

    Returns:
        The `keras.distribution.LayoutMap`, whose entries can be changed.

    Raises:
        TypeError: `mesh` is no mesh, or `model` no layer.
        ValueError: the mesh has no axis of that name, or the model is not built.

    Example (Keras distributes models on JAX):

    >>> import keras
    >>> from keras_attention import TransformerBlock, distribution
    >>> x = keras.Input((None, 16))
    >>> model = keras.Model(x, TransformerBlock(32, 4, name="block")(x))
    >>> mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    >>> layouts = distribution.layout_map(mesh, model)
    >>> layouts["block/attention/attention_output/kernel"].axes
    ('model', None, None)
    """
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise TypeError(f"`mesh` must be a `keras.distribution.DeviceMesh`. Received: {mesh!r}")
    saving.check_built("model", model)
    if axis not in mesh.axis_names:
        raise ValueError(
            f"`axis` must be one of the mesh's axes, {mesh.axis_names}. Received: axis={axis!r}"
        )
    devices = mesh.shape[mesh.axis_names.index(axis)]
    layouts = keras.distribution.LayoutMap(mesh)
    for layer in (model, *keras_private.sublayers(model)):
        for kind, axes in SPLIT.items():
            if isinstance(layer, kind):
                for variable in layer.weights:
                    split = axes.get(variable.path.removeprefix(f"{layer.path}/"))
                    if split is not None and variable.shape[split] % devices == 0:
                        names = [axis if n == split else None for n in range(len(variable.shape))]
                        layouts[variable.path] = keras.distribution.TensorLayout(names, mesh)
    return layouts
