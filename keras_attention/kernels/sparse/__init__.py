"""Kernels of patterns in which a query sees few keys, and what cuts and merges their problems."""
