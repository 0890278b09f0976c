"""Architectures of Hugging Face, by `model_type`: a function of options, and names of tensors."""

from keras_attention.convert.huggingface.architectures import (
    bert,
    distilbert,
    llama,
    roberta,
)

MODULES = (
    bert,
    distilbert,
    llama,
    roberta,
)
ARCHITECTURES = {name: module for module in MODULES for name in module.MODEL_TYPES}
