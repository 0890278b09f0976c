"""Architectures of Hugging Face, by `model_type`: a function of options, and names of tensors."""

from keras_attention.convert.huggingface.architectures import llama

ARCHITECTURES = {name: module for module in (llama,) for name in module.MODEL_TYPES}
