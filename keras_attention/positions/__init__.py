"""Positions inside attention: how the positions of a pair change its score.

A position encodes queries and keys before their product (`encode`), or adds a bias to their
scores (`bias`; `query_bias` sees their contents too), given absolute positions. So cached
decoding, cross-attention and left padding need no special case.

A custom position is a subclass of `Position` with one of these methods.
"""

from typing import TypeAlias

from keras_attention import saving
from keras_attention.core.hints import Config
from keras_attention.positions.base import Position
from keras_attention.positions.biases import (
    FIRE,
    ALiBi,
    ContinuousGridBias,
    GridRelativeBias,
    Kerple,
    RelativeBias,
)
from keras_attention.positions.relative import CoPE, Disentangled, Shaw, TransformerXL
from keras_attention.positions.rotary import AxialRotary, MixedRotary, Rotary, XPos

__all__ = [
    "BUILTIN",
    "FIRE",
    "ALiBi",
    "AxialRotary",
    "CoPE",
    "ContinuousGridBias",
    "Disentangled",
    "GridRelativeBias",
    "Kerple",
    "MixedRotary",
    "Position",
    "RelativeBias",
    "Rotary",
    "Shaw",
    "TransformerXL",
    "XPos",
    "get",
]

BUILTIN = {
    "rotary": Rotary,
    "alibi": ALiBi,
    "relative_bias": RelativeBias,
    "disentangled": Disentangled,
    "shaw": Shaw,
    "kerple": Kerple,
    "fire": FIRE,
    "xpos": XPos,
    "transformer_xl": TransformerXL,
    "cope": CoPE,
}


# What the slot may be given: an object, its saved config, or a name.
PositionLike: TypeAlias = Position | Config | str


def get(position: PositionLike | None) -> Position | None:
    """The position that `position` names: a position, its saved config, None or a name.

    >>> from keras_attention import positions
    >>> type(positions.get("rotary")).__name__
    'Rotary'
    """
    return saving.slot("position", Position, BUILTIN, position, optional=True)
