"""Layers: one concept per file, each composing the slots of the pipeline."""
