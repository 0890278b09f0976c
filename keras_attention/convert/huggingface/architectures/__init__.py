"""Architectures of Hugging Face, by `model_type`: a function of options, and names of tensors."""

from keras_attention.convert.huggingface.architectures import (
    bloom,
    falcon,
    gpt2,
    gpt_neox,
    llama,
    mpt,
    opt,
    phi,
)

MODULES = (bloom, falcon, gpt2, gpt_neox, llama, mpt, opt, phi)
ARCHITECTURES = {name: module for module in MODULES for name in module.MODEL_TYPES}
