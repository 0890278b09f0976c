"""Penalties that grow with the distance, at a rate that each head has or learns."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from keras_attention.core.hints import Tensor
from keras_attention.positions.base import Position, check_heads
from keras_attention.sequences import shapes


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


Variant = Literal["logarithmic", "power"]


class Kerple(Position):
    r"""Kernelized relative positions of Chi et al. 2022 (arXiv 2205.09921), section 4.

    With r₁ and r₂ learned by each head:

        logarithmic    score(i, j) = qᵀ k − r₁ · ln(1 + r₂ |i − j|),    r₁, r₂ > 0
        power          score(i, j) = qᵀ k − r₁ · |i − j|^r₂,            r₁ > 0, 0 < r₂ ≤ 2

    The weights are unbounded: r₁ and r₂ are their exponentials, and the r₂ of "power" is
    2 · sigmoid. The paper clips r₁ and r₂ themselves. ALiBi is "power" with r₂ = 1 and fixed r₁.

    Args:
        variant: "logarithmic", which was the better one for longer texts in the paper, or "power".
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: `variant` is another, or layers with different numbers of heads share it.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.SelfAttention(8, 4, causal=True, position="kerple")
    >>> layer(x).shape
    (2, 5, 32)
    >>> tuple(layer.position.rates()[0].shape)
    (8,)
    """

    by_distance = True

    def __init__(self, variant: Variant = "logarithmic", **kwargs: Any):
        super().__init__(**kwargs)
        self.variant = shapes.check_choice("variant", variant, get_args(Variant))

    def build(self, query_shape, key_shape):
        # Heads begin with different rates, around 1.
        for name in ("first", "second"):
            initializer = keras.initializers.RandomUniform(-1.0, 1.0)
            shape = (query_shape[2],)
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer=initializer))

    def rates(self) -> tuple[Tensor, Tensor]:
        """The r₁ and r₂ of each head, (H,) each."""
        first = ops.exp(self.first)
        if self.variant == "power":
            return first, 2.0 * ops.sigmoid(self.second)
        return first, ops.exp(self.second)

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_heads(self, self.first.shape[0], num_heads)
        first, second = (rate[:, None, None] for rate in self.rates())
        distance = ops.cast(ops.abs(i - j), first.dtype)
        if self.variant == "logarithmic":
            return -first * ops.log1p(second * distance)
        # By a logarithm of at least 0: the gradient of a power of 0 is none.
        power = ops.exp(second * ops.log(ops.clip(distance, 1.0, math.inf)))
        return -first * ops.where(distance > 0, power, ops.zeros_like(power))
