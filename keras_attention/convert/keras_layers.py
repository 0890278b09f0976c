"""`from_keras` and `from_keras_hub`: attention of Keras, blocks and positions of KerasHub."""

from typing import Any

import keras
import numpy as np

from keras_attention import scores
from keras_attention.convert import utils
from keras_attention.layers.attention import Attention
from keras_attention.layers.blocks.transformer_block import TransformerBlock
from keras_attention.layers.embeddings.position_embedding import (
    LearnedPositionEmbedding,
    SinCosPositionEmbedding,
)
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.positions import Rotary


def from_keras(layer: keras.Layer) -> Attention:
    r"""A layer of this package that computes what an attention layer of Keras does.

    | `keras.layers.` | becomes |
    | --- | --- |
    | `MultiHeadAttention` | `MultiHeadAttention` |
    | `GroupQueryAttention` | `MultiHeadAttention(num_key_value_heads=…)` |
    | `Attention()` | `Attention(score="dot")` |
    | `Attention(use_scale=True)` | `Attention(score=ScaledDot(scale))`: a constant, not trained |
    | `Attention(score_mode="concat")` | `Attention(score=Additive(D))`, D features |
    | `AdditiveAttention()` | `Attention(score=Additive(D))` |

    Keras's additive scores, `Σ scale tanh(q + k)`, project neither side. Those of this package do,
    starting from identity projections, which training changes. LoRA weights are merged into the
    new kernel.

    Args:
        layer: a built layer of one of these classes. Its name, dtype policy, dropout, initializers
            and regularizers are kept.

    Returns:
        A built layer. Outputs and scores are equal, for all masks, for every query with a key;
        a query without one gets 0. Scores of `Attention` have an axis of one head, (B, 1, T, S).

    Raises:
        ValueError: the layer is of another class, not built, or quantized.

    >>> import keras, keras_attention
    >>> x, memory = keras.random.normal((2, 5, 16)), keras.random.normal((2, 7, 16))
    >>> theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=8)
    >>> expected = theirs(x, memory, use_causal_mask=True)
    >>> ours = keras_attention.convert.from_keras(theirs)
    >>> difference = ours(x, memory, use_causal_mask=True) - expected
    >>> bool(keras.ops.max(keras.ops.abs(difference)) < 1e-5)
    True
    """
    return utils.converter(layer, "keras", _KERAS)(layer)


def _with_heads(layer):
    # Those of `GroupedQueryAttention` have other names.
    names = {"num_query_heads": "num_heads", "head_dim": "key_dim"}
    config = {names.get(name, name): value for name, value in layer.get_config().items()}
    for name, kind in (("_softmax", "Softmax"), ("_dropout_layer", "Dropout")):
        if getattr(layer, name, None) is not None:
            utils.check_part(layer, name, (kind,))
    ours = MultiHeadAttention.from_config(config)
    # The rank of the inputs, too, which the weights do not determine.
    ours.build(**layer.get_build_config()["shapes_dict"])
    utils.copy(layer, ours, utils.heads())
    return ours


def _without_heads(layer):
    """Scores of products, or outer · Σ tanh(inner · (q + k)), with weights where Keras has none."""

    def array(x):
        return np.asarray(1.0 if x is None else keras.ops.convert_to_numpy(x), "float64")

    shapes, inner, outer = layer.get_build_config()["input_shape"], None, array(layer.scale)
    if type(layer) is keras.layers.AdditiveAttention:
        inner = 1.0
    elif layer.score_mode == "concat":
        inner, outer = outer, array(layer.concat_score_weight)
    score: scores.ScoreLike = "dot"
    if inner is not None:
        score = scores.Additive(shapes[0][-1], use_bias=False)
    elif layer.scale is not None:
        score = scores.ScaledDot(float(outer))
    # Keras's layers before 3.15 have no seed without dropout.
    seed = getattr(layer, "seed", None)
    ours = Attention(score=score, seed=seed, **utils.arguments(layer, "dropout"))
    ours.build(*shapes)
    if inner is not None:
        for kernel in (ours.score.query_kernel, ours.score.key_kernel):
            utils.assign(kernel, inner * np.eye(shapes[0][-1]))
        utils.assign(ours.score.v, outer * np.ones(shapes[0][-1]))
    return ours


_KERAS = {
    "MultiHeadAttention": _with_heads,
    "GroupedQueryAttention": _with_heads,
    "Attention": _without_heads,
    "AdditiveAttention": _without_heads,
}


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

    >>> import keras, keras_hub, keras_attention
    >>> x = keras.random.normal((2, 5, 16))
    >>> theirs = keras_hub.layers.TransformerEncoder(intermediate_dim=32, num_heads=2)
    >>> expected = theirs(x)
    >>> ours = keras_attention.convert.from_keras_hub(theirs)
    >>> bool(keras.ops.max(keras.ops.abs(ours(x) - expected)) < 1e-5)
    True
    """
    return utils.converter(layer, "keras_hub", _KERAS_HUB)(layer)


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
    **utils.heads("_self_attention_layer.", "attention."),
    **utils.heads("_cross_attention_layer.", "cross_attention_layer."),
}


def _block(layer, attention_class="MultiHeadAttention", causal=False):
    cross = getattr(layer, "_cross_attention_layer", None)
    size = layer._feedforward_intermediate_dense.kernel.shape[0]
    if size % layer.num_heads:
        utils.refuse(
            layer,
            f"its num_heads={layer.num_heads} does not divide its {size} features",
            "Put a `MultiHeadAttention(num_heads, key_dim)` and a `FeedForward` together instead.",
        )
    options = {"causal": causal, "cross_attention": cross is not None}
    ours = TransformerBlock(**options, **utils.arguments(layer, _ARGUMENTS))
    context = None if cross is None else (None, None, cross._value_dense.kernel.shape[0])
    ours.build((None, None, size), context)
    sizes = {"num_heads": layer.num_heads, "key_dim": ours.attention.key_dim}
    sizes["value_dim"] = sizes["key_dim"]
    for name in ("_self_attention_layer", *(() if cross is None else ("_cross_attention_layer",))):
        config = utils.check_part(layer, name, (attention_class,), **sizes).get_config()
        for option in ("use_gate", "sliding_window", "output_shape"):
            if config.get(option):
                utils.refuse(
                    layer,
                    f"its part `{name}` was replaced by one of {option}={config[option]!r}",
                    "Convert that part alone, by `from_keras`.",
                )
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


_KERAS_HUB = {
    "TransformerEncoder": _block,
    "TransformerDecoder": lambda layer: _block(layer, "CachedMultiHeadAttention", causal=True),
    "SinePositionEncoding": lambda layer: SinCosPositionEmbedding(
        merge_mode="none", **utils.arguments(layer, "max_wavelength")
    ),
    "PositionEmbedding": _learned,
    "TokenAndPositionEmbedding": _token_and_position,
    "RotaryEmbedding": _rotary,
}
