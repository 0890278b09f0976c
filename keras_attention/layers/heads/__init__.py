"""Heads: how inputs are split into heads, and merged into one output."""

from keras_attention.layers.heads.base import ROLES, DenseHeads, EinsumHeads, Heads

__all__ = ["ROLES", "DenseHeads", "EinsumHeads", "Heads"]
