"""Reading the weights of layers, as `collect_attention` returns them."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from keras_attention.visualization import labels

# Weights (B, H, T, S) by the names of layers, or in their order.
Weights: TypeAlias = Mapping[str, np.ndarray] | Iterable[np.ndarray]


class Gradients(dict):
    """Arrays by the names of layers, as `attention_gradients` returns them.

    Args:
        normed: the names of layers whose heads are normalized after attention, so that their
            outputs do not depend on a factor of all weights of a head.
    """

    def __init__(self, arrays, normed):
        super().__init__(arrays)
        self.normed = normed


def read(scores):
    """Arrays (B, H, T, S) in float64, by the names of their layers.

    Raises:
        ValueError, TypeError: `scores` are no such arrays.
    """
    if isinstance(scores, Mapping):
        named = dict(scores)
    elif isinstance(scores, (list, tuple)):
        named = dict(enumerate(scores))
    else:
        raise TypeError(
            "`scores` must be a dict or a list of arrays (B, H, T, S), such as the result of "
            f"`collect_attention`. Received: {type(scores).__name__}"
        )
    found = {}
    for name, weights in named.items():
        array = labels.array(weights, f" of {name!r}").astype("float64")
        if array.ndim != 4 or 0 in array.shape:
            raise ValueError(
                f"`scores` of {name!r} must be (B, H, T, S), none of them 0. "
                f"Received: shape {array.shape}"
            )
        found[name] = array
    if not found:
        raise ValueError(f"`scores` must have a layer at least. Received: {scores!r}")
    return found


def weights(scores):
    """As `read`, of weights: those of `DifferentialAttention` are differences, and refused.

    Raises:
        ValueError, TypeError: as `read`, or a number is negative or not finite.
    """
    found = read(scores)
    for name, array in found.items():
        if not np.isfinite(array).all() or array.min() < 0:
            raise ValueError(
                f"`scores` of {name!r} must be weights, finite and not negative, which "
                "those of `DifferentialAttention` are not: leave such layers out. "
                f"Received: numbers from {array.min()} to {array.max()}"
            )
    return found
