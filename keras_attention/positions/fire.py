"""`FIRE`: a perceptron of the distance, which is normalized by the position of the query."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.hints import Tensor
from keras_attention.positions.base import Position, check_heads


class FIRE(Position):
    r"""Functional interpolation for relative positions. Li et al. 2024 (arXiv 2310.04418), eq. 5.

    `score(i, j) = qᵀ k + f(ψ(|i − j|) / ψ(max(i, L)))` with `ψ(x) = ln(1 + c x)`, learned c and L,
    and f a perceptron of one input, `units` hidden units (ReLU) and an output for each head.
    For keys up to the query, the input of f lies between 0 and 1 in texts of any length, so that
    longer texts are interpolated; keys after it may be above 1. The last layer of f has no bias,
    which softmax is invariant to.

    The distance is relative, and the i in the divisor absolute: it counts from the first position
    of a row. Pass `positions` for rows that are padded on the left, as stacks of blocks do.
    Without a causal mask it is symmetric in the distance.

    Kernels compute it for a tile of pairs, with `units` numbers for each, which all heads share,
    and an output per head: O(T · S · units · H) time.

    Args:
        units: hidden units of f, 32 in the paper.
        threshold: the first value of L.
        scale: the first value of c.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is not above 0, or layers with different numbers of heads share it.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.SelfAttention(8, 4, causal=True, position="fire")
    >>> layer(x).shape
    (2, 5, 32)
    >>> [tuple(weight.shape) for weight in layer.position.weights]
    [(), (), (32,), (32,), (32, 8)]
    """

    def __init__(
        self, units: int = 32, threshold: float = 512.0, scale: float = 0.1, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.units = shapes.check_count("units", units)
        self.threshold = shapes.check_number("threshold", threshold, above=0)
        self.scale = shapes.check_number("scale", scale, above=0)

    def build(self, query_shape, key_shape):
        first = keras.initializers.Constant(self.scale)
        self.c = self.add_weight(name="c", shape=(), initializer=first)
        # Of L: a factor learns at the rate of other weights.
        self.factor = self.add_weight(name="factor", shape=(), initializer="ones")
        # As a layer of one input, whose numbers of inputs and outputs differ.
        uniform = keras.initializers.RandomUniform(-1.0, 1.0)
        self.hidden = self.add_weight(name="hidden", shape=(self.units,), initializer=uniform)
        self.hidden_bias = self.add_weight((self.units,), "zeros", name="hidden_bias")
        self.output_kernel = self.add_weight(
            name="output", shape=(self.units, query_shape[2]), initializer="glorot_uniform"
        )

    def bias(self, i: Tensor, j: Tensor, num_heads: int) -> Tensor:
        check_heads(self, self.output_kernel.shape[1], num_heads)
        c = ops.abs(ops.convert_to_tensor(self.c))
        limit = self.threshold * ops.abs(ops.convert_to_tensor(self.factor))
        distance = ops.log1p(c * ops.cast(ops.abs(i - j), c.dtype))
        # Above 0, whatever c and L become.
        longest = ops.log1p(c * backend.maximum(ops.cast(i, c.dtype), limit)) + 1e-6
        share = distance / longest
        share = share if len(share.shape) == 4 else share[None, None]
        kernel, bias = (
            ops.convert_to_tensor(x)[:, None, None] for x in (self.hidden, self.hidden_bias)
        )
        hidden = ops.relu(kernel * share + bias)
        found = ops.einsum("uh,buts->bhts", ops.convert_to_tensor(self.output_kernel), hidden)
        return found if len(i.shape) == 4 or len(j.shape) == 4 else found[0]
