"""Embeddings: of tokens, of positions, of patches and grids."""
