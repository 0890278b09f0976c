"""Architectures of Hugging Face, by `model_type`: a function of options, and names of tensors."""

from keras_attention.convert.huggingface.architectures import (
    bloom,
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    mpt,
    opt,
    phi,
    phi3,
)

MODULES = (bloom, falcon, gemma, gpt2, gpt_neox, gpt_oss, llama, mpt, opt, phi, phi3)
ARCHITECTURES = {name: module for module in MODULES for name in module.MODEL_TYPES}
