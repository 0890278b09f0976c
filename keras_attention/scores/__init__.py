"""Scores: how well a key matches a query.

A score that is an inner product after each side is prepared separately (dot, cosine, general)
implements `prepare_query` and `prepare_key`, or `prepare` for both. Every kernel can run it. A
score of pairs overrides `compare`, after the same preparation, or simply `call`.
Scores are layers, so that they can own weights; they compute in float32 for every dtype policy,
and are built by their attention layer.
"""

from typing import TypeAlias

from keras_attention import saving
from keras_attention.core.hints import Config
from keras_attention.scores.base import Score, full_precision
from keras_attention.scores.built_in import (
    Additive,
    Concat,
    Cosine,
    Dot,
    General,
    KeyOnly,
    Location,
    ReducedRank,
    ScaledDot,
)

__all__ = [
    "BUILTIN",
    "Additive",
    "Concat",
    "Cosine",
    "Dot",
    "General",
    "KeyOnly",
    "Location",
    "ReducedRank",
    "ScaledDot",
    "Score",
    "full_precision",
    "get",
]

BUILTIN = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "cosine": Cosine,
    "general": General,
    "reduced_rank": ReducedRank,
    "additive": Additive,
    "concat": Concat,
    "location": Location,
    "key_only": KeyOnly,
}


# What the slot may be given: an object, its saved config, or a name.
ScoreLike: TypeAlias = Score | Config | str


def get(score: ScoreLike) -> Score:
    """The score that `score` names: a score, its saved config, or a string such as "cosine".

    >>> from keras_attention import scores
    >>> type(scores.get("cosine")).__name__
    'Cosine'
    """
    return saving.slot("score", Score, BUILTIN, score)
