"""Sequences: what a call is given, read and checked once, with its masks, shapes and grids."""
