"""Benchmarks against Keras, in one run, alternating; never timed tests."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Processes that measure memory find a GPU that the one which starts them has not taken whole.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
