"""One small model for each layer and option, which every release writes to a file.

A case stays as it is for ever, since it also makes the models that weights of old files are loaded
into. What is new has a new case, `since` the release that it will come with.
"""

from tests.golden.cases import (  # noqa: F401, each adds some
    layers,
    models,
    recurrent,
    slots,
    stacks,
    stored,
)
from tests.golden.cases.case import CASES

__all__ = ["CASES"]
