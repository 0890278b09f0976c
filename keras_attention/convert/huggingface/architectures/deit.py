"""DeiT: ViT with a token of distillation after the class token.

A model whose logits are the mean of two classifiers is refused.
"""

from keras_attention.convert.huggingface import sequences
from keras_attention.convert.huggingface.architectures import vit

PREFIX = "deit."
FIELDS = {"deit": vit.STACK}

input_shape = vit.input_shape
entries = vit.entries
UNREAD = {r"pooler\..*": "of another task"}


def model(config, dtype):
    """The `Encoder` of a configuration."""
    has_head = sequences.has_head(config, ["DeiTModel"], "DeiTForImageClassification")
    return vit.encoder(config, dtype, has_head, ("cls_token", "distillation_token"))
