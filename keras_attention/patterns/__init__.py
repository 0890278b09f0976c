"""Patterns: which keys a query may attend to, as predicates on the two absolute positions.

A pattern stores no array. Kernels evaluate it at positions, so training,
cached decoding (queries that start at an offset) and T ≠ S are one rule, and a kernel that reads
few keys evaluates few pairs. Patterns combine with `&`, `|` and `~`, compare and hash by value,
and are saved with the model.
"""

from typing import TypeAlias

from keras_attention import saving
from keras_attention.core.hints import Config
from keras_attention.patterns.base import And, Groups, Not, Or, Pattern, Span
from keras_attention.patterns.big_bird import BigBird
from keras_attention.patterns.built_in import (
    Block,
    Causal,
    Dilated,
    Global,
    Prefix,
    RandomBlocks,
    SlidingWindow,
    Strided,
)
from keras_attention.patterns.grids import Axial, GridWindow, Neighborhood

__all__ = [
    "And",
    "Axial",
    "BigBird",
    "Block",
    "Causal",
    "Dilated",
    "Global",
    "GridWindow",
    "Groups",
    "Neighborhood",
    "Not",
    "Or",
    "Pattern",
    "Prefix",
    "RandomBlocks",
    "SlidingWindow",
    "Span",
    "Strided",
    "get",
]


def every(*patterns: Pattern | None) -> Pattern | None:
    """All of the patterns that are not None, under `&`; None where there are none."""
    found = [pattern for pattern in patterns if pattern is not None]
    if len(found) < 2:
        return found[0] if found else None
    return And(found)


BUILTIN = {"causal": Causal}


# What the slot may be given: an object, its saved config, or a name.
PatternLike: TypeAlias = Pattern | Config | str


def get(pattern: PatternLike | None) -> Pattern | None:
    """The pattern that `pattern` names: a pattern, its saved config, "causal" or None.

    >>> from keras_attention import patterns
    >>> patterns.get("causal")
    Causal()
    """
    return saving.slot("pattern", Pattern, BUILTIN, pattern, optional=True)
