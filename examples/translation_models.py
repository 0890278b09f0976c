"""The former name of `examples.translation.models`.

Models that were saved under it name it as their module, and in `needs` ask for its import.
"""

from examples.translation.models import Recurrent, Transformer, Translator

__all__ = ["Recurrent", "Transformer", "Translator"]
