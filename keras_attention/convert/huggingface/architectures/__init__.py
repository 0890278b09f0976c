"""Architectures of Hugging Face, by `model_type`."""

from keras_attention.convert.huggingface.architectures import (
    albert,
    bart,
    bert,
    bloom,
    clip,
    deberta_v2,
    distilbert,
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    modernbert,
    mpt,
    opt,
    phi,
    roberta,
    t5,
    vit,
    whisper,
)

MODULES = (
    albert,
    bart,
    bert,
    bloom,
    clip,
    deberta_v2,
    distilbert,
    falcon,
    gemma,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    modernbert,
    mpt,
    opt,
    phi,
    roberta,
    t5,
    vit,
    whisper,
)
ARCHITECTURES = {kind: one for module in MODULES for kind, one in module.ARCHITECTURES.items()}
# Models of several parts, which are read one at a time.
COMPOSITES = {"clip": clip}
