"""What architectures share: options from fields of a configuration, and names of tensors."""

import keras
import numpy as np

from keras_attention import patterns
from keras_attention.convert.huggingface.fields import ACTIVATIONS
from keras_attention.convert.huggingface.tensors import (
    Entry,
    dense,
    fused,
    fused_bias,
    fused_dense,
    matrix,
    norm,
    plain,
    transposed,
)
from keras_attention.layers.scaled_embedding import ScaledEmbedding
from keras_attention.models import Embeddings, Logits

__all__ = [
    "activation",
    "attention",
    "dense",
    "embeddings",
    "fused",
    "fused_bias",
    "fused_dense",
    "gated",
    "head",
    "head_size",
    "heads",
    "layer_norm",
    "layer_types",
    "logits",
    "matrix",
    "norm",
    "plain",
    "table_from",
    "transposed",
    "window",
    "windows",
]

# Options


def activation(config, name):
    """The name of an activation."""
    return ACTIVATIONS[config[name]]


def head_size(config, size="hidden_size", heads="num_attention_heads"):
    """The features of each head, of fields for those of all and for the number of heads."""
    if config[size] % config[heads]:
        raise ValueError(
            f"{size!r} of `{config.where}` must be a multiple of {heads!r}. Received: "
            f"{config[size]} and {config[heads]}"
        )
    return config[size] // config[heads]


def layer_types(config, default):
    """The type of each layer, "sliding_attention" or "full_attention"."""
    count = config["num_hidden_layers"]
    types = default if config["layer_types"] is None else config["layer_types"]
    if len(types) != count or any(x not in ("sliding_attention", "full_attention") for x in types):
        raise ValueError(
            f"'layer_types' of `{config.where}` must be {count} of 'sliding_attention' and "
            f"'full_attention'. Received: {types}"
        )
    return types


def windows(config, types, size):
    """The pattern of layers of some types, beside the causal one: a sliding window or None."""
    if size is None and "sliding_attention" in types:
        raise ValueError(
            f"'sliding_window' of `{config.where}` must be a number, and in use, where layers are "
            f"of 'sliding_attention'. Received: {config['sliding_window']}, layer_types={types}"
        )
    return [window(size) if kind == "sliding_attention" else None for kind in types]


def window(size):
    """The pattern of the last `size` tokens, beside the causal one; None for all of them."""
    return None if size is None else patterns.SlidingWindow(size - 1, 0)


def layer_norm(epsilon, name, dtype):
    """A `LayerNormalization`."""
    return keras.layers.LayerNormalization(epsilon=epsilon, name=name, dtype=dtype)


def embeddings(config, dtype, scale=1, size=None, **options):
    """The embeddings of tokens, without a mask: padding is a mask of the caller's.

    `size` is their number of features, where it is not `hidden_size`.
    """
    tokens = ScaledEmbedding(
        config["vocab_size"], size or config["hidden_size"], scale=scale, name="tokens", dtype=dtype
    )
    return Embeddings(tokens, name="embeddings", dtype=dtype, **options)


def logits(config, dtype, **options):
    """The logits of a model for causal language modelling; None for a model without them."""
    name = config.architecture or "Model"
    if "LM" in name or "Generation" in name:
        tied = config["tie_word_embeddings"]
        return Logits(config["vocab_size"], tied=tied, name="logits", dtype=dtype, **options)
    if not name.endswith("Model") or "Heads" in name:
        raise ValueError(
            f"'architectures' of `{config.where}` must be of a language model, or of a base model: "
            f"no other head is supported for model_type={config.model_type!r}. Received: {name!r}"
        )
    return None


# Tensors


def attention(name, layer, output="o_proj"):
    """The four projections of an attention layer."""
    return [
        *dense(f"{name}.q_proj", layer.query_dense),
        *dense(f"{name}.k_proj", layer.key_dense),
        *dense(f"{name}.v_proj", layer.value_dense),
        *dense(f"{name}.{output}", layer.output_dense, inputs=2),
    ]


def gated(name, layer, names=("gate_proj", "up_proj", "down_proj")):
    """The three projections of a gated feed-forward network."""
    gate, up, down = names
    return [
        *dense(f"{name}.{gate}", layer.gate_dense),
        *dense(f"{name}.{up}", layer.intermediate_dense),
        *dense(f"{name}.{down}", layer.output_dense),
    ]


def heads(layer):
    """The projections of an attention layer whose weights are in one tensor."""
    return [layer.query_dense, layer.key_dense, layer.value_dense]


def table_from(name, variable, start):
    """A table whose first rows, of padding, are not read: position 0 is the row `start`."""
    return Entry(
        name,
        (variable,),
        lambda x: [x[start:]],
        lambda arrays: np.concatenate([np.zeros_like(arrays[0][:start]), arrays[0]]),
    )


def head(name, model):
    """The logits, if the model has its own matrix for them."""
    if model.logits is None or model.logits.tied:
        return []
    return dense(name, model.logits.dense)
