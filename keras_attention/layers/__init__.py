"""Layers: one concept per file, each composing the slots of the pipeline."""

# Where 0.2.0 had it.
from keras_attention import feature_maps

__all__ = ["feature_maps"]
