"""`from_keras_hub`: the Transformer blocks and the positions of KerasHub (once KerasNLP)."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention.convert import utils
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.embeddings.position_embedding import (
    LearnedPositionEmbedding,
    SinCosPositionEmbedding,
)
from keras_attention.positions import Rotary


def from_keras_hub(layer: keras.Layer) -> keras.Layer:
    r"""A layer of this package that computes what a layer of `keras_hub.layers` does.

    | `keras_hub.layers.` | becomes |
    | --- | --- |
    | `TransformerEncoder` | `TransformerBlock` |
    | `TransformerDecoder` | `TransformerBlock(causal=True, cross_attention=…)` |
    | `SinePositionEncoding` | `SinCosPositionEmbedding(merge_mode="none")` |
    | `PositionEmbedding` | `LearnedPositionEmbedding(merge_mode="none")` |
    | `TokenAndPositionEmbedding` | a `Sequential` of `Embedding` and `LearnedPositionEmbedding` |
    | `RotaryEmbedding` | `positions.Rotary`, for the `position` of an attention layer |

    Args:
        layer: a built layer of one of these classes, or of their predecessors in `keras_nlp`.
            Name, dtype policy, dropout and initializers are kept.

    Returns:
        A built layer (for `RotaryEmbedding`, a slot). A block's output is equal for every real
        token; padding does not attend. Its `padding_mask` is `mask`, its
        `encoder_sequence` is `context`; caches are created by `make_cache` and `cache_context`. The
        decoder is causal in every call: there is no `use_causal_mask`.

    Raises:
        ValueError: the layer is of another class, not built, or quantized; its number of heads
            does not divide its features; or its rotary frequencies are of an unknown kind.

    Example:

    >>> import keras, keras_hub, keras_attention
    >>> x = keras.random.normal((2, 5, 16))
    >>> theirs = keras_hub.layers.TransformerEncoder(intermediate_dim=32, num_heads=2)
    >>> expected = theirs(x)
    >>> ours = keras_attention.convert.from_keras_hub(theirs)
    >>> bool(keras.ops.max(keras.ops.abs(ours(x) - expected)) < 1e-5)
    True
    """
    convert = utils.converter(layer, "keras_hub", CONVERTERS)
    utils.check_weights(layer)
    return convert(layer)


# Arguments of a block, and its parts by their names there.
_ARGUMENTS = """
intermediate_dim num_heads dropout activation layer_norm_epsilon normalize_first kernel_initializer
bias_initializer
"""
_BLOCK = {
    "_self_attention_layer_norm": "attention_norm",
    "_cross_attention_layer_norm": "cross_attention_norm",
    "_feedforward_intermediate_dense": "feed_forward.intermediate_dense",
    "_feedforward_output_dense": "feed_forward.output_dense",
    "_feedforward_layer_norm": "feed_forward_norm",
}


def _block(layer, attention_class="MultiHeadAttention", causal=False):
    cross_attention = getattr(layer, "_cross_attention_layer", None)
    size = layer._feedforward_intermediate_dense.kernel.shape[0]
    if size % layer.num_heads:
        utils.refuse(
            layer,
            f"its num_heads={layer.num_heads} does not divide its {size} features",
            "Put a `MultiHeadAttention(num_heads, key_dim)` and a `FeedForward` together instead.",
        )
    ours = TransformerBlock(
        causal=causal,
        cross_attention=cross_attention is not None,
        **utils.arguments(layer, _ARGUMENTS),
    )
    attentions, context_shape = {"_self_attention_layer": "attention"}, None
    if cross_attention is not None:
        attentions["_cross_attention_layer"] = "cross_attention_layer"
        context_shape = (None, None, cross_attention._value_dense.kernel.shape[0])
    ours.build((None, None, size), context_shape)
    key_dim = ours.attention.key_dim
    sizes = {"num_heads": layer.num_heads, "key_dim": key_dim, "value_dim": key_dim}
    for name, path in attentions.items():
        source = utils.check_part(layer, name, (attention_class,), **sizes)
        config = source.get_config()
        for option in ("use_gate", "sliding_window", "output_shape"):
            if config.get(option):
                utils.refuse(
                    layer,
                    f"its part `{name}` was replaced by one of {option}={config[option]!r}",
                    "Convert that part alone, by `from_keras`.",
                )
        utils.copy(source, getattr(ours, path), utils.HEADS)
    utils.copy(layer, ours, _BLOCK)
    return ours


def _learned(layer, merge_mode="none"):
    ours = LearnedPositionEmbedding(
        layer.sequence_length,
        merge_mode=merge_mode,
        embeddings_initializer=layer.initializer,
        **utils.arguments(layer),
    )
    ours.build((None, None, layer.position_embeddings.shape[-1]))
    utils.assign(ours.embeddings, layer.position_embeddings)
    return ours


def _token_and_position(layer):
    tokens = layer.token_embedding
    embedding = keras.layers.Embedding(
        layer.vocabulary_size,
        layer.embedding_dim,
        embeddings_initializer=layer.embeddings_initializer,
        **utils.arguments(tokens, "mask_zero"),
    )
    positions = _learned(layer.position_embedding, merge_mode="add")
    ours = keras.Sequential([embedding, positions], name=layer.name)
    ours.build((None, None))
    utils.assign(embedding.embeddings, tokens.embeddings)
    return ours


def _rotary(layer):
    kind = layer.rope_type if layer.scaling_factor != 1 else "linear"
    if kind not in ("linear", "yarn") or layer.denominator_dim is not None:
        utils.refuse(
            layer,
            f"rope_type={layer.rope_type!r} with denominator_dim={layer.denominator_dim} gives "
            "frequencies that `positions.Rotary` does not have",
            "Write them as a custom `positions.Position`.",
        )
    scaling: dict[str, Any] = {}
    if layer.scaling_factor != 1:
        scaling = {"scaling": kind, "factor": float(layer.scaling_factor)}
        if kind == "yarn":
            scaling["original_max_length"] = layer.original_max_position_embeddings
            scaling |= {x: getattr(layer, x) for x in ("beta_fast", "beta_slow", "truncate")}
    return Rotary(layer.max_wavelength, name=layer.name, **scaling)


CONVERTERS = {
    "TransformerEncoder": _block,
    "TransformerDecoder": lambda layer: _block(layer, "CachedMultiHeadAttention", causal=True),
    "SinePositionEncoding": lambda layer: SinCosPositionEmbedding(
        merge_mode="none", **utils.arguments(layer, "max_wavelength")
    ),
    "PositionEmbedding": _learned,
    "TokenAndPositionEmbedding": _token_and_position,
    "RotaryEmbedding": _rotary,
}
