"""What architectures share: options from fields of a configuration, and names of tensors."""

from typing import Any

import keras
import numpy as np

from keras_attention import patterns, positions
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
    "heads",
    "layer_norm",
    "logits",
    "matrix",
    "norm",
    "plain",
    "rotary",
    "table_from",
    "transposed",
    "windows",
]

# Names of Hugging Face for activations, and ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


# Options


def activation(config, name, default):
    """The name of an activation."""
    return ACTIVATIONS[config.require(name, *ACTIVATIONS, default=default)]


def rotary(config, size=None, fraction=1.0, given=None, base="rope_theta"):
    """The rotary positions of `rope_parameters`, or of the fields of files of version 4.

    Args:
        config: the configuration.
        size: features of each head, needed where a fraction of them is rotated.
        fraction: that fraction, unless the configuration has it.
        given: the `Config` of the positions, where it is not that of all layers.
        base: the field of the longest wavelength in files of version 4.
    """
    if given is None:
        given = config.part("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    kind = given.require(
        "rope_type" if "rope_type" in given else "type",
        *("default", "linear", "dynamic", "yarn", "llama3", "longrope"),
        default="default",
    )
    given.ignore("type", "rope_type")
    wavelength = given.get("rope_theta", config.get(base, 10000.0))
    fraction = given.get("partial_rotary_factor", config.get("partial_rotary_factor", fraction))
    options: dict[str, Any] = {"dim": None if fraction == 1 else int(size * fraction)}
    if kind != "default":
        options |= {"scaling": kind, "factor": given.get("factor", 1.0)}
    if kind not in ("default", "linear"):
        length = config.get("max_position_embeddings")
        options["original_max_length"] = given.get(
            "original_max_position_embeddings",
            config.get("original_max_position_embeddings", length),
        )
    if kind == "llama3":
        options |= {"beta_fast": given["high_freq_factor"], "beta_slow": given["low_freq_factor"]}
    if kind == "yarn":
        given.require("mscale", None)
        given.require("mscale_all_dim", None)
        options |= {
            "beta_fast": given.get("beta_fast", 32.0),
            "beta_slow": given.get("beta_slow", 1.0),
            "attention_factor": given.get("attention_factor"),
            "truncate": given.get("truncate", True),
        }
    if kind == "longrope":
        options |= {
            "factor": given.get("factor", max(1.0, length / options["original_max_length"])),
            "short_factors": given["short_factor"],
            "long_factors": given["long_factor"],
            "attention_factor": given.get("attention_factor"),
        }
    given.check_read()
    return positions.Rotary(wavelength, **options)


def windows(config, types=None):
    """The pattern of each layer, beside the causal one: a sliding window or None.

    `types` are those of the layers in files without `layer_types`.
    """
    count = config["num_hidden_layers"]
    size = config.get("sliding_window")
    types = config.get("layer_types", types)
    if types is None:
        sliding = size is not None and config.get("use_sliding_window", True)
        types = ["sliding_attention" if sliding else "full_attention"] * count
        if sliding and "max_window_layers" in config:
            # Qwen 2: the first ones see all.
            full = min(count, config["max_window_layers"])
            types[:full] = ["full_attention"] * full
    config.ignore("use_sliding_window", "max_window_layers")
    unknown = set(types) - {"sliding_attention", "full_attention"}
    if unknown or len(types) != count:
        raise ValueError(
            f"'layer_types' of `{config.where}` must be {count} of 'sliding_attention' and "
            f"'full_attention'. Received: {types}"
        )
    window = None if size is None else patterns.SlidingWindow(size - 1, 0)
    return [window if kind == "sliding_attention" else None for kind in types]


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


def logits(config, dtype, tied=False, **options):
    """The logits of a model for causal language modelling; None for a model without them.

    `tied` is the default of `tie_word_embeddings`.
    """
    tied = config.get("tie_word_embeddings", tied)
    if not any("LM" in name or "Generation" in name for name in config["architectures"]):
        return None
    return Logits(config["vocab_size"], tied=tied, name="logits", dtype=dtype, **options)


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
