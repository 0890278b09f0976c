"""CLIP of both towers, each of which is read as a model of its own, with its projection."""

from keras_attention.convert.huggingface.config import Config
from keras_attention.convert.huggingface.fields import COMMON, count, ignored, read

PARTS = ("text", "vision")
FIELDS = {
    **COMMON,
    "projection_dim": count(512),
    **{f"{name}_config": read(None, dict | None) for name in PARTS},
    # The whole of a tower, over the other, where it is not null.
    **{f"{name}_config_dict": read(None, dict | None) for name in PARTS},
    **ignored("of the likeness of texts and images", "logit_scale_init_value"),
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
