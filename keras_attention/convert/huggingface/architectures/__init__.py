"""Architectures of Hugging Face, by `model_type`: a module has those of one kind."""

from keras_attention.convert.huggingface.architectures import (
    bert,
    decoders,
    encoders,
    experts,
    hybrids,
    images,
    llamas,
    pairs,
)

_MODULES = (bert, decoders, encoders, experts, hybrids, images, llamas, pairs)
ARCHITECTURES = {kind: one for module in _MODULES for kind, one in module.ARCHITECTURES.items()}
# Models of several parts, which are read one at a time.
COMPOSITES = {"clip": images, "siglip": images}
