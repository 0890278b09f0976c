"""A score by the position of a key, regardless of its content."""

from __future__ import annotations

import functools
import math
from typing import Any

from keras import ops

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.hints import Tensor
from keras_attention.scores.base import Learned, multiply


class Location(Learned):
    """score(q, k_s) = w_sᵀ q, with a vector for each key position s. Luong et al. 2015, equation 8.

    The query alone determines the position; the keys' content has no effect. `W` is
    (H, Kq, max_length), and keys use its first columns, or those of the `positions` of a call.
    A masked key gets no weight, as always. (The paper's softmax is the normalization slot.)

    Args:
        max_length: the largest number of keys. More raise an error: ValueError if their number is
            known statically, and otherwise an error of the backend.
        kernel_initializer, kernel_regularizer, kernel_constraint: of `W`.

    Raises:
        ValueError: `max_length` is not an integer of at least 1, or there are more keys, or
            positions beyond it: where their values are not known yet, the scores are NaN.

    >>> import keras
    >>> from keras_attention import Attention, scores
    >>> x, memory = keras.random.normal((2, 5, 8)), keras.random.normal((2, 7, 6))
    >>> Attention(score=scores.Location(max_length=10))(x, memory).shape
    (2, 5, 6)
    """

    needs_length = True

    def __init__(self, max_length: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.max_length = shapes.check_count("max_length", max_length)

    def build(self, query_shape, key_shape):
        self.check_length(key_shape[1])
        self.kernel = self.add_kernel("kernel", (*query_shape[2:], self.max_length))

    def prepare_query(self, query: Tensor) -> Tensor:
        return multiply("bthk,hku->bthu", query, self.kernel)

    def into_spec(self, spec, query, key, key_is_prepared=False):
        spec, query, key = super().into_spec(spec, query, key, key_is_prepared)
        at: Any = spec.positions
        if at is None or at.consecutive:
            return spec, query, key
        self.check_length(key.shape[1])
        known = shapes.visible_values(at.key)
        if known is not None and known.size and known.max() >= self.max_length:
            raise ValueError(
                f"Location has scores of positions below max_length={self.max_length}. "
                f"Received: positions of keys up to {known.max()}"
            )
        return spec.replace(score=functools.partial(self._compare_at, at.key)), query, key

    def _compare_at(self, positions, query, key):
        """Scores of keys at positions (S,) or (B, S); NaN beyond the last column."""
        batch, queries, heads, _ = backend.shape(query)
        positions = positions if len(positions.shape) == 2 else positions[None]
        positions = positions[:, None, None]
        index = ops.clip(positions, 0, self.max_length - 1)
        shape = (batch, heads, queries, backend.shape(key)[1])
        columns = ops.transpose(query, (0, 2, 1, 3))
        found = backend.take_last(columns, ops.broadcast_to(index, shape))
        return ops.where(positions < self.max_length, found, ops.cast(math.nan, found.dtype))

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        self.check_length(key.shape[1])
        return ops.transpose(backend.first(query, backend.shape(key)[1]), (0, 2, 1, 3))

    def check_length(self, keys):
        """Raises if there are surely more keys than the kernel has columns."""
        keys = backend.known_size(keys)
        if keys is not None and keys > self.max_length:
            raise ValueError(
                f"Location can score at most max_length={self.max_length} keys. Received: {keys}"
            )
