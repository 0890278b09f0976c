"""Attention to few keys, with projections of their own: global tokens, selected blocks."""
