"""A text, token by token: `python -m examples.language_model`, see `command.py`."""

from examples.language_model.command import main

__all__ = ["main"]
