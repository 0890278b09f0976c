"""The tower of images of CLIP, with its projection or without it.

The first output is that of the image. The final norm applies to every vector: of `transformers`
the first is its pooled output, and the others are as they are before the norm.
"""

from keras_attention.convert.huggingface import buffers, parts, sequences
from keras_attention.convert.huggingface.architectures import clip_text, vit
from keras_attention.convert.huggingface.fields import count
from keras_attention.convert.huggingface.tensors import convolution, shaped
from keras_attention.models import Embeddings, Encoder

PREFIX = "vision_model."
FIELDS = {
    "clip_vision_model": {
        **clip_text.TOWER,
        "projection_dim": count(512),
        "hidden_size": count(768),
        "intermediate_size": count(3072),
        "num_attention_heads": count(12),
        "num_channels": count(3),
        "image_size": count(224),
        "patch_size": count(32),
    }
}

input_shape = vit.input_shape
UNREAD = {
    **buffers.COUNTED,
    r"text_model\..*|text_projection\.weight|logit_scale": "of the other tower, and of both",
}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["CLIPVisionModel"], "CLIPVisionModelWithProjection")
    epsilon = config["layer_norm_eps"]
    return Encoder(
        clip_text.blocks(config, dtype, causal=False),
        Embeddings(
            vit.patches(config, ["class_embedding"], dtype, use_bias=False),
            vit.positions(config, 1, dtype),
            norm=sequences.layer_norm(epsilon, dtype),
            name="embeddings",
            dtype=dtype,
        ),
        sequences.layer_norm(epsilon, dtype, "final_norm"),
        clip_text.projection(config, has_head, dtype),
        dtype=dtype,
    )


def entries(model, prefix):
    """The tensors of a model."""
    layer, name = model.embeddings, f"{prefix}embeddings"
    patches, _, token = layer.tokens.layers
    return [
        shaped(f"{name}.class_embedding", token.token, (-1,)),
        *convolution(f"{name}.patch_embedding", patches),
        parts.plain(f"{name}.position_embedding.weight", layer.positions.embeddings),
        *parts.norm(f"{prefix}pre_layrnorm", layer.norm),
        *clip_text.block_entries(model, prefix),
        *parts.norm(f"{prefix}post_layernorm", model.final_norm),
        *parts.head("visual_projection", model),
    ]
