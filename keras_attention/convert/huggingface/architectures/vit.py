"""ViT and DeiT: patches of images, with their heights, widths and colors last.

The first token is the class token; DeiT has one of distillation after it. A classifier applies to
every token: the first has the logits of the image. The pooler is left out, and a model whose logits
are the mean of two classifiers is refused.
"""

import functools

import keras

from keras_attention.convert.huggingface import entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.fields import count, ignored, only, read
from keras_attention.layers.class_token import ClassToken
from keras_attention.layers.grid_embedding import LearnedGridEmbedding
from keras_attention.models import Embeddings, Encoder, Logits

STACK = {
    **fields.SIZES,
    **fields.LABELS,
    "image_size": read(224, int | list),
    "patch_size": read(16, int | list),
    "num_channels": count(3),
    "hidden_act": fields.activation("gelu"),
    "layer_norm_eps": read(1e-12),
    "qkv_bias": only(True),
    **ignored(
        "of a pooler and a decoder, which are not read",
        "encoder_stride pooler_output_size pooler_act",
    ),
}


def block(config):
    """The options of a block."""
    return {
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "activation": config["hidden_act"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "residual": "pre",
    }


def _make(config, model, head, tokens):
    """The `Encoder`; `tokens` are names of those before the ones of patches, first to last."""
    logits = None
    if stacks.has_head(config, [model], head):
        logits = Logits(stacks.labels(config), tied=False, use_bias=True, name="classifier")
    return Encoder(
        stacks.blocks(config["num_hidden_layers"], lambda n: block(config)),
        embeddings(config, tokens),
        stacks.layer_norm(config["layer_norm_eps"], "final_norm"),
        logits,
    )


def embeddings(config, tokens, use_bias=True, **options):
    """Patches of images as vectors, with `tokens` before them, and their positions."""
    layers = patches(config, config["hidden_size"], use_bias)
    layers += [ClassToken(name=name) for name in reversed(tokens)]
    return Embeddings(
        keras.Sequential(layers, name="tokens"),
        LearnedGridEmbedding(grid(config), prefix=len(tokens), name="positions"),
        name="embeddings",
        **options,
    )


def patches(config, dim, use_bias=True):
    """The layers that make a sequence of vectors of images."""
    size = _pair(config, "patch_size")
    options = {"use_bias": use_bias, "data_format": "channels_last", "name": "patches"}
    convolution = keras.layers.Conv2D(dim, size, size, **options)
    return [convolution, keras.layers.Reshape((-1, dim), name="sequence")]


def grid(config):
    """Rows and columns of the patches."""
    sizes = (_pair(config, name) for name in ("image_size", "patch_size"))
    return tuple(image // patch for image, patch in zip(*sizes, strict=True))


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


def _architecture(name, prefix, tokens):
    """Both differ in their tokens, and in what their classes are called."""
    # The last is nearest to the patches.
    paths = {
        token: f"embeddings.tokens.layers.{len(tokens) + 1 - n}.token"
        for n, token in enumerate(tokens)
    }
    return Architecture(
        STACK,
        functools.partial(
            _make, model=f"{name}Model", head=f"{name}ForImageClassification", tokens=tokens
        ),
        {
            "embeddings.patch_embeddings.projection": entries.convolution(
                "embeddings.tokens.layers.0"
            ),
            **{f"embeddings.{token}": path for token, path in paths.items()},
            "embeddings.position_embeddings": entries.axes("embeddings.positions.embeddings", 3),
            "encoder.layer": entries.blocks(
                {
                    **entries.attention(
                        "attention.", "attention.query attention.key attention.value output.dense"
                    ),
                    "layernorm_before": "attention_norm",
                    "intermediate.dense": "feed_forward.intermediate_dense",
                    "output.dense": "feed_forward.output_dense",
                    "layernorm_after": "feed_forward_norm",
                }
            ),
            "layernorm": "final_norm",
        },
        prefix=prefix,
        head={"classifier": "logits.dense"},
        unread={r"pooler\..*": "of another task"},
        input_shape=input_shape,
    )


ARCHITECTURES = {
    "vit": _architecture("ViT", "vit.", ("cls_token",)),
    "deit": _architecture("DeiT", "deit.", ("cls_token", "distillation_token")),
}
