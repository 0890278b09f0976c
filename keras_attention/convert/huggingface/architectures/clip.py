"""CLIP of both towers, each of which is read as a model of its own, with its projection or not.

Every token of a text has an output; that of the whole text is at its end-of-text token. It is
causal: padding after the text needs no mask. The first output of an image is that of the whole. Its
final norm applies to every vector: of `transformers` the first is its pooled output, and the others
are as they are before the norm.
"""

import functools

from keras_attention.convert.huggingface import buffers, entries, fields, stacks
from keras_attention.convert.huggingface.architecture import Architecture
from keras_attention.convert.huggingface.architectures import images
from keras_attention.convert.huggingface.config import Config
from keras_attention.models import Encoder, Logits

PARTS = ("text", "vision")
FIELDS = {
    **fields.COMMON,
    **fields.defaults(projection_dim=512),
    **{f"{name}_config": fields.read(None, dict | None) for name in PARTS},
    # Unless null, replaces the whole configuration of a tower.
    **{f"{name}_config_dict": fields.read(None, dict | None) for name in PARTS},
    **fields.ignored("of the likeness of texts and images", "logit_scale_init_value"),
}
# Fields of both towers, with the sizes that files may leave out.
_TOWER = {
    **fields.COMMON,
    **fields.defaults(num_hidden_layers=12, layer_norm_eps=1e-5),
    **fields.nullable(projection_dim=512),
    "hidden_act": fields.activation("quick_gelu"),
    **fields.ignored("a tower has no logits of tokens", "tie_word_embeddings"),
}


def tower(values, where, name):
    """The fields of a tower, as `transformers` would write them for it alone, and of what they are.

    Args:
        values: the fields of both.
        where: what these are of.
        name: "text" or "vision".
    """
    config = Config(values, FIELDS, where)
    field = f"{name}_config"
    if config[f"{field}_dict"] is not None:
        field = f"{field}_dict"
    return {
        **(config[field] or {}),
        "model_type": f"clip_{name}_model",
        "architectures": [f"CLIP{name.title()}ModelWithProjection"],
        "projection_dim": config["projection_dim"],
    }, f"{field} of {where}"


def _make(config, name):
    """The `Encoder` of a tower, with the projection to the space of both if its class has it."""
    logits = None
    if name == "Text":
        table = stacks.positions(config["max_position_embeddings"])
        embeddings = stacks.embeddings(config, positions=table)
    else:
        norm = stacks.layer_norm(config["layer_norm_eps"])
        embeddings = images.embeddings(config, ["class_embedding"], use_bias=False, norm=norm)
    if stacks.has_head(config, f"CLIP{name}", ["ModelWithProjection"]):
        logits = Logits(config["projection_dim"], tied=False, name="projection")
    options = stacks.block(config, residual="pre", causal=name == "Text")
    norm = stacks.layer_norm(config["layer_norm_eps"], "final_norm")
    return Encoder(stacks.blocks(config, lambda n: options), embeddings, norm, logits)


_BLOCKS = entries.blocks(
    entries.block(
        "layer_norm1 layer_norm2", "self_attn. q_proj k_proj v_proj out_proj", "mlp. fc1 fc2"
    )
)


def _others(tower, projection):
    """The tensors of the other tower, and of both."""
    pattern = rf"{tower}_model\..*|{projection}_projection\.weight|logit_scale"
    return {**buffers.COUNTED, pattern: "of the other tower, and of both"}


ARCHITECTURES = {
    "clip_text_model": Architecture(
        {
            **_TOWER,
            **fields.defaults(vocab_size=49408, hidden_size=512, intermediate_size=2048),
            **fields.defaults(num_attention_heads=8, max_position_embeddings=77),
        },
        functools.partial(_make, name="Text"),
        {
            "embeddings.token_embedding.weight": "embeddings.tokens.table",
            "embeddings.position_embedding.weight": "embeddings.positions.embeddings",
            "encoder.layers": _BLOCKS,
            "final_layer_norm": "final_norm",
        },
        prefix="text_model.",
        head={"text_projection": "logits.dense"},
        unread=_others("vision", "visual"),
    ),
    "clip_vision_model": Architecture(
        {
            **_TOWER,
            **fields.defaults(projection_dim=512, hidden_size=768, intermediate_size=3072),
            **fields.defaults(num_attention_heads=12, num_channels=3),
            **fields.defaults(image_size=224, patch_size=32),
        },
        functools.partial(_make, name="Vision"),
        {
            "embeddings.class_embedding": entries.axes("embeddings.tokens.layers.2.token", 1),
            "embeddings.patch_embedding": entries.convolution("embeddings.tokens.layers.0"),
            "embeddings.position_embedding.weight": "embeddings.positions.embeddings",
            "pre_layrnorm": "embeddings.norm",
            "encoder.layers": _BLOCKS,
            "post_layernorm": "final_norm",
        },
        prefix="vision_model.",
        head={"visual_projection": "logits.dense"},
        unread=_others("text", "text"),
        input_shape=images.input_shape,
    ),
}
