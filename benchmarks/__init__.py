"""Benchmarks against Keras, in one run, alternating; never timed tests."""
