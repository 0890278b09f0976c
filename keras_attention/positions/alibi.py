"""`ALiBi`: a penalty linear in the distance, with a slope per head."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from keras import ops

from keras_attention import saving, shapes
from keras_attention.hints import Tensor
from keras_attention.positions.base import Position


@saving.register
class ALiBi(Position):
    r"""score(i, j) = qᵀ k − m_h |i − j|, without weights. Press et al. 2022, section 3.

    The slopes of n heads are `m_h = 2^(−8 h / n)` for h = 1 … n if n is a power of two. For any
    other n they are those of the largest power of two p below n, and then every second one of 2p
    heads, from the first on, until there are n (the authors' rule, from their code).

    With a causal mask this equals the paper's bias, as softmax is invariant to the difference.
    Without one it is symmetric: keys before and after the query are treated alike.

    Args:
        max_bias: the 8 in the slopes: the slope of the last head is `2^(−max_bias)`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: `max_bias` is not a finite number above 0.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> [float(slope) for slope in positions.ALiBi().slopes(8)[:4]]
    [0.5, 0.25, 0.125, 0.0625]
    >>> x = keras.random.normal((2, 5, 32))
    >>> keras_attention.SelfAttention(8, 4, causal=True, position="alibi")(x).shape
    (2, 5, 32)
    """

    by_distance = bounded = True

    def __init__(self, max_bias: float = 8.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.max_bias = shapes.check_number("max_bias", max_bias, above=0)

    def slopes(self, num_heads: int) -> np.ndarray:
        """The slope of each head, a NumPy array (H,) in float64."""
        power = 2 ** math.floor(math.log2(num_heads))
        slopes = 2.0 ** (-self.max_bias * np.arange(1, power + 1) / power)
        between = 2.0 ** (-self.max_bias * np.arange(1, 2 * power + 1, 2) / (2 * power))
        return np.concatenate([slopes, between[: num_heads - power]])

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        slopes = ops.cast(self.slopes(num_heads)[:, None, None], self.compute_dtype)
        return -slopes * ops.cast(ops.abs(i - j), self.compute_dtype)
