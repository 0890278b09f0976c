"""`XPos`: rotary positions whose products decay with the distance."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.kinds import Positive, keep
from keras_attention.positions.rotary import Rotary, paired
from keras_attention.scores import Dot, ScaledDot

# The largest logarithm of a scale, so that products of scaled numbers are finite in float32.
_LARGEST = 30.0
# More than any position.
_FAR = 2**30


class XPos(Rotary):
    r"""Extrapolatable rotary positions. Sun et al. 2023 (arXiv 2212.10554), algorithm 1.

    `score(i, j) = (R_i q)ᵀ Ζ^((i − j) / scale_base) (R_j k)`, for keys before the query: R are the
    rotations of `Rotary`, and Ζ multiplies pair n of d features by

        ζ_n = (2 n / d + γ) / (1 + γ),  n = 0 … d/2 − 1

    Fast pairs, of which far keys have any angle, decay fastest. It is for causal attention: the
    scores of keys after the query would grow.

    Query and key are scaled by powers of ζ from the middle of the queries on, in float32 whatever
    their dtype, and a cache stores keys before that. So the distance to keys is not limited, but
    that between the queries of one call is, to less than `most_queries`: longer texts are computed
    in calls with a cache. The score is "dot" or "scaled_dot", as "cosine" would undo the scaling.

    Args:
        scale_base: positions in which a pair is multiplied by its ζ.
        gamma: γ; the larger, the less it decays.
        **kwargs: all arguments of `Rotary`.

    Raises:
        ValueError: a number is not above 0, a call has too many queries, or positions of queries
            that are too far apart, or as `Rotary`. Positions whose values are known only at run
            time cannot be checked: the scores of those too far apart are limited.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> x = keras.random.normal((2, 5, 32))
    >>> keras_attention.SelfAttention(4, 8, causal=True, position="xpos")(x).shape
    (2, 5, 32)
    >>> positions.XPos().scales(8).round(2)
    array([0.29, 0.46, 0.64, 0.82])
    >>> positions.XPos().most_queries
    24521
    """

    # A norm would undo the scaling.
    scores = (Dot, ScaledDot)
    # The scale of a key is relative to the queries of a call.
    encodes_alone = False

    def __init__(self, scale_base: Positive = 512.0, gamma: Positive = 0.4, **kwargs: Any):
        super().__init__(**kwargs)
        keep(self, locals())

    @property
    def most_queries(self) -> int:
        """The number of consecutive queries in one call whose scores are accurate."""
        return int(2 * _LARGEST * self.scale_base / np.log(1 + 1 / self.gamma))

    def scales(self, size: int) -> np.ndarray:
        """The ζ of each pair of `size` features, in float64 (NumPy)."""
        pair = np.arange(size // 2)
        return (2 * pair / size + self.gamma) / (1 + self.gamma)

    def _check(self, queries, positions):
        """Raises if the positions of queries are too far apart, as far as they are known."""
        values = shapes.visible_values(positions) if backend.is_eager(positions) else None
        if values is not None and values.size:
            queries = int((values.max(axis=-1) - values.min(axis=-1)).max()) + 1
        if isinstance(queries, int) and queries > self.most_queries:
            raise ValueError(
                f"XPos(scale_base={self.scale_base}, gamma={self.gamma}) takes queries within "
                f"{self.most_queries} positions in one call: use a larger `scale_base`, or a cache "
                f"and several calls. Received: queries within {queries} positions"
            )

    def encode(self, query, key, query_positions, key_positions):
        self._check(query.shape[1], query_positions)
        wide = shapes.accumulation_dtype(query, key)
        query, key = (ops.cast(x, wide) for x in (query, key))
        query, key = super().encode(query, key, query_positions, key_positions)
        at = ops.cast(query_positions, wide)
        last = ops.max(at, axis=-1, keepdims=True, initial=0)
        first = ops.min(at, axis=-1, keepdims=True, initial=_FAR)
        # Any middle gives the same products; whole numbers keep differences exact.
        middle = ops.floor((first + last) / 2)
        size = self._rotated_size(query.shape[-1], key.shape[-1])
        logs = np.log(self.scales(size)) / self.scale_base
        scaled = []
        for x, distance in ((query, at - middle), (key, middle - ops.cast(key_positions, wide))):
            powers = ops.expand_dims(distance, (-1, -2)) * ops.cast(logs, wide)
            # Below it is 0 for keys so far before the queries that the product is.
            powers = ops.exp(ops.clip(powers, -np.inf, _LARGEST))
            powers = paired(powers, powers, self.layout)
            if size != x.shape[-1]:
                rest = ops.ones_like(powers[..., :1])
                rest = ops.repeat(rest, x.shape[-1] - size, axis=-1)
                powers = ops.concatenate([powers, rest], axis=-1)
            scaled.append(x * powers)
        return scaled[0], scaled[1]
