"""Architectures of Hugging Face, by `model_type`: a function of options, and names of tensors."""

from keras_attention.convert.huggingface.architectures import (
    albert,
    bart,
    bert,
    clip,
    clip_text,
    clip_vision,
    deit,
    distilbert,
    llama,
    modernbert,
    roberta,
    t5,
    vit,
    whisper,
)

MODULES = (
    albert,
    bart,
    bert,
    clip_text,
    clip_vision,
    deit,
    distilbert,
    llama,
    modernbert,
    roberta,
    t5,
    vit,
    whisper,
)
ARCHITECTURES = {name: module for module in MODULES for name in module.MODEL_TYPES}
# Models of several parts, which are read one at a time.
COMPOSITES = {"clip": clip}
