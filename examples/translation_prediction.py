"""The former name of `examples.translation.prediction`, which its page told users to import."""

from examples.translation.prediction import Translate, load

__all__ = ["Translate", "load"]
