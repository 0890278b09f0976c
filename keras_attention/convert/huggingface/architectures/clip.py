"""CLIP of both towers, each of which is read as a model of its own, with its projection."""

from keras_attention.convert.huggingface.config import Config

PARTS = ("text", "vision")

# What files of version 4 leave out.
_SIZES = {
    "text": {
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
    },
    "vision": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 32,
    },
}


def part(config, name):
    """The configuration of a tower, as `transformers` would write it for the tower alone."""
    values = {other: config.part(f"{other}_config").values for other in PARTS}[name]
    config.ignore("logit_scale_init_value")
    for other in PARTS:
        config.require(f"{other}_config_dict", None)
    values = {
        **_SIZES[name],
        **values,
        "model_type": f"clip_{name}_model",
        "architectures": [f"CLIP{name.title()}ModelWithProjection"],
        "projection_dim": config.get("projection_dim", 512),
    }
    config.check_read()
    return Config(values, f"{name}_config of {config.where}", config.folder)
