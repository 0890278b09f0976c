"""`Rotary`: pairs of features turn by an angle that grows with the position."""

import functools
import math

import keras
import numpy as np

from keras_attention import saving, shapes
from keras_attention.positions.base import Position, check_number
from keras_attention.scores import Cosine, Dot, ScaledDot

ops = keras.ops

LAYOUTS = ("half_split", "interleaved")
SCALINGS = (None, "linear", "dynamic", "yarn")

# Positions are split at this power of two, so that their products with numbers of 12 bits are exact
# in float32.
_SPLIT = 4096


@saving.register
class Rotary(Position):
    """WIP."""

    scores = (Dot, ScaledDot, Cosine)
