"""Positive and negative movie reviews: `python -m examples.imdb_classification`."""
