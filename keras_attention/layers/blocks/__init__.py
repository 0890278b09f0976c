"""Transformer blocks, their norms and their networks."""
