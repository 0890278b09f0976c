"""Alignments: how a step of an `AttentionCell` depends on what earlier steps attended to.

A custom one is a subclass of `Alignment`, which calls the attention of the cell with other keys or
another normalization, and keeps states, arrays (B, H, S), from step to step.
"""

from typing import TypeAlias

from keras_attention import saving
from keras_attention.alignments.base import Alignment, Coverage, LocationSensitive
from keras_attention.alignments.monotonic import MoChA, Monotonic
from keras_attention.core.hints import Config

__all__ = ["BUILTIN", "Alignment", "Coverage", "LocationSensitive", "MoChA", "Monotonic", "get"]

BUILTIN = {
    "coverage": Coverage,
    "location_sensitive": LocationSensitive,
    "mocha": MoChA,
    "monotonic": Monotonic,
}


# What the slot may be given: an object, its saved config, or a name.
AlignmentLike: TypeAlias = Alignment | Config | str


def get(alignment: AlignmentLike | None) -> Alignment | None:
    """The alignment that the argument names: an object, its saved config, a string or None.

    >>> from keras_attention import alignments
    >>> type(alignments.get("coverage")).__name__
    'Coverage'
    """
    return saving.slot("alignment", Alignment, BUILTIN, alignment, optional=True)
