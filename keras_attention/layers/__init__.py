"""Layers: one concept a file, each composing the slots of the one pipeline."""
