"""The version, on its own so that setup.py can read it without importing Keras."""

__version__ = "0.4.0.dev0"
