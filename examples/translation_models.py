"""The former name of `examples.translation.models`.

Models that were saved under it name it as their module, and name its import in `needs`.
"""

from examples.translation.models import Recurrent, Transformer, Translator

__all__ = ["Recurrent", "Transformer", "Translator"]
