"""Architectures of Hugging Face, by `model_type`: a function of options, and names of tensors."""

from keras_attention.convert.huggingface.architectures import (
    bart,
    bert,
    distilbert,
    llama,
    roberta,
    t5,
    whisper,
)

MODULES = (
    bart,
    bert,
    distilbert,
    llama,
    roberta,
    t5,
    whisper,
)
ARCHITECTURES = {name: module for module in MODULES for name in module.MODEL_TYPES}
