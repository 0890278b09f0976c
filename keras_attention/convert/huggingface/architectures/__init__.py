"""Architectures of Hugging Face, by `model_type`: a module has those of one kind."""

from keras_attention.convert.huggingface.architectures import (
    bert,
    clip,
    decoders,
    encoders,
    experts,
    gemma,
    images,
    llamas,
    pairs,
    t5,
)

_MODULES = (bert, clip, decoders, encoders, experts, gemma, images, llamas, pairs, t5)
ARCHITECTURES = {kind: one for module in _MODULES for kind, one in module.ARCHITECTURES.items()}
# Models of several parts, which are read one at a time.
COMPOSITES = {"clip": clip}
