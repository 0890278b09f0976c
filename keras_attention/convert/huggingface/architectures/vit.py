"""ViT: patches of images, with their heights, widths and colors last.

The first token is the class token. A classifier applies to every token: the first has the logits of
the image. The pooler is left out.
"""

import keras

from keras_attention.convert.huggingface import parts, sequences
from keras_attention.convert.huggingface.fields import (
    COMMON,
    LABELS,
    SIZES,
    activation,
    count,
    ignored,
    only,
    read,
)
from keras_attention.convert.huggingface.tensors import convolution, shaped
from keras_attention.layers.class_token import ClassToken
from keras_attention.layers.position_embedding import LearnedPositionEmbedding
from keras_attention.layers.transformer_block import TransformerBlock
from keras_attention.models import Embeddings, Encoder, Logits

PREFIX = "vit."
STACK = {
    **COMMON,
    **SIZES,
    **LABELS,
    "image_size": read(224, int | list),
    "patch_size": read(16, int | list),
    "num_channels": count(3),
    "hidden_act": activation("gelu"),
    "layer_norm_eps": read(1e-12),
    "qkv_bias": only(True),
    **ignored("of a pooler and a decoder, which are not read", "encoder_stride"),
    **ignored("of a pooler and a decoder, which are not read", "pooler_output_size pooler_act"),
}
FIELDS = {"vit": STACK}

UNREAD = {r"pooler\..*": "of another task"}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["ViTModel"], "ViTForImageClassification")
    return encoder(config, dtype, has_head, ("cls_token",))


def encoder(config, dtype, has_head, names):
    """The `Encoder`; `names` are of the tokens before those of patches, first to last."""
    epsilon = config["layer_norm_eps"]
    embeddings = Embeddings(
        patches(config, names, dtype),
        positions(config, len(names), dtype),
        name="embeddings",
        dtype=dtype,
    )
    blocks = [
        TransformerBlock(
            config["intermediate_size"],
            config["num_attention_heads"],
            activation=parts.activation(config, "hidden_act"),
            layer_norm_epsilon=epsilon,
            residual="pre",
            name=f"block_{n}",
            dtype=dtype,
        )
        for n in range(config["num_hidden_layers"])
    ]
    norm = sequences.layer_norm(epsilon, dtype, "final_norm")
    logits = None
    if has_head:
        labels = sequences.labels(config)
        logits = Logits(labels, tied=False, use_bias=True, name="classifier", dtype=dtype)
    return Encoder(blocks, embeddings, norm, logits, dtype=dtype)


def patches(config, names, dtype, use_bias=True):
    """The layer from images to patches, with tokens before them."""
    dim, size = config["hidden_size"], _pair(config, "patch_size")
    layers = [
        keras.layers.Conv2D(
            dim,
            size,
            strides=size,
            use_bias=use_bias,
            data_format="channels_last",
            name="patches",
            dtype=dtype,
        ),
        keras.layers.Reshape((-1, dim), name="sequence", dtype=dtype),
        *(ClassToken(name=name, dtype=dtype) for name in reversed(names)),
    ]
    return keras.Sequential(layers, name="tokens")


def positions(config, tokens, dtype):
    """The table of positions of all patches, and of `tokens` before them."""
    image, patch = _pair(config, "image_size"), _pair(config, "patch_size")
    count = (image[0] // patch[0]) * (image[1] // patch[1])
    return LearnedPositionEmbedding(count + tokens, name="positions", dtype=dtype)


def _pair(config, name):
    size = config[name]
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(x, int) and x > 0 for x in pair):
        raise ValueError(
            f"{name!r} of `{config.where}` must be a positive integer, or two. Received: {size}"
        )
    return pair


def input_shape(config):
    """The shape of the images."""
    return (None, *_pair(config, "image_size"), config["num_channels"])


def entries(model, prefix):
    """The tensors of a model."""
    tokens, table = model.embeddings.tokens.layers, model.embeddings.positions.embeddings
    found = convolution(f"{prefix}embeddings.patch_embeddings.projection", tokens[0])
    found += [parts.plain(f"{prefix}embeddings.{layer.name}", layer.token) for layer in tokens[2:]]
    found.append(shaped(f"{prefix}embeddings.position_embeddings", table, (1, *table.shape)))
    for n, block in enumerate(model.blocks):
        name = f"{prefix}encoder.layer.{n}"
        inner = f"{name}.attention.attention"
        names = [f"{inner}.query", f"{inner}.key", f"{inner}.value"]
        found += [
            *sequences.projections([*names, f"{name}.attention.output.dense"], block.attention),
            *parts.norm(f"{name}.layernorm_before", block.attention_norm),
            *sequences.feed_forward(
                f"{name}.intermediate.dense", f"{name}.output.dense", block.feed_forward
            ),
            *parts.norm(f"{name}.layernorm_after", block.feed_forward_norm),
        ]
    found += parts.norm(f"{prefix}layernorm", model.final_norm)
    return found + parts.head("classifier", model)
