"""Sentences of one language in another: `python -m examples.translation`, see `command.py`."""

from examples.translation.command import main

__all__ = ["main"]
