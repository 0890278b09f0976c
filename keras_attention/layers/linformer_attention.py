"""`LinformerAttention`: keys and values of a sequence projected to a few rows."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import keras

from keras_attention import masks, saving, shapes
from keras_attention.backend import backend
from keras_attention.layers.axes import Axes
from keras_attention.layers.heads import EinsumHeads
from keras_attention.layers.low_rank_attention import LowRankAttention

ops = keras.ops

Sharing = Literal["heads", "key_value"]


@saving.register
class LinformerAttention(LowRankAttention):
    r"""Attention to projections of the sequence, in linear time (Wang et al. 2020, equation 7).

        head_i = softmax(Q W_i^Q (E_i K W_i^K)^T / √key_dim) F_i V W_i^V

    E and F, (rank, S), are learned: each of the `rank` keys is a weighted sum of all tokens, and
    so is its value. A shorter sequence uses the columns of its length.

    Args:
        num_heads, key_dim: as in `MultiHeadAttention`.
        max_length: the largest number of keys, padding included.
        rank: the number of rows to which keys and values are projected.
        value_dim: features of each value head; defaults to `key_dim`.
        sharing: which projections are one (section 4): None for E and F of each key head, "heads"
            for one E and one F, "key_value" for E = F of all heads.
        **kwargs: `output_shape`, `attention_axes` and `use_gate` of `MultiHeadAttention`, and
            all other arguments of `Attention` but `pattern` and `position`.

    Call arguments are those of `MultiHeadAttention`, with masks of padding alone. A masked token
    adds nothing, and columns count real tokens, so padding changes nothing wherever it is.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask.

    Raises:
        ValueError, TypeError: a size, a slot or a mask is not as described; there are more keys
            than `max_length`, if their number is known statically, and otherwise an error of the
            backend; a call is causal, has a cache, or has arguments for pairs.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 500, 32))
    >>> layer = keras_attention.LinformerAttention(4, 8, max_length=512, rank=64)
    >>> layer(x).shape
    (2, 500, 32)
    >>> layer.sequence_kernel.shape    # E and F of each head
    (2, 4, 64, 512)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        max_length: int,
        rank: int,
        value_dim: int | None = None,
        sharing: Sharing | None = None,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.max_length = shapes.check_count("max_length", max_length)
        self.rank = shapes.check_count("rank", rank)
        shapes.check_choice("sharing", sharing, (None, *get_args(Sharing)))
        self.sharing = sharing
        self.heads = LinformerHeads(self)
        self._refuse_caches()

    def through_few(self, query, key, value, query_mask, key_mask, training):
        length = _known_length(key.shape[1], self.max_length)
        # A query without keys has output 0, not the mean of projections of nothing.
        any_key = None if key_mask is None else ops.any(key_mask, axis=1, keepdims=True)
        if length == 0:
            any_key = ops.zeros((1, 1), "bool")
        kernel = ops.cast(ops.convert_to_tensor(self.sequence_kernel), key.dtype)
        kernel = backend.first(kernel, backend.shape(key)[1])
        key = self._to_few(key, kernel[0], key_mask)
        value = self._to_few(value, kernel[-1], key_mask)
        return self.over_few(query, key, value, query_mask, any_key, training)

    def _to_few(self, heads, kernel, mask):
        """Heads (B, rank, G, K) of (B, S, G, K), by a kernel (G or 1, rank, S)."""
        batch, length, groups, size = backend.shape(heads)
        rows = ops.reshape(heads, (batch, length, groups * size))
        if mask is not None:
            rows = masks.clear(rows, mask)
        if self.sharing:
            found = ops.cast(backend.matmul(kernel, rows), heads.dtype)
            return ops.reshape(found, (batch, self.rank, groups, size))
        rows = ops.reshape(rows, (batch, length, groups, size))
        return ops.einsum("grs,bsgk->brgk", kernel, rows)


class LinformerHeads(EinsumHeads):
    """Heads, and the projections of their sequence."""

    # Not by `check_shapes`: PyTorch's files are built of lengths that Keras made up.
    def output_shape(self, query_shape, value_shape):
        axes = Axes(len(value_shape), self.layer.attention_axes).positions
        sizes = [value_shape[axis] for axis in axes]
        _known_length(None if None in sizes else math.prod(sizes), self.layer.max_length)
        return super().output_shape(query_shape, value_shape)

    def build(self, query_shape, value_shape, key_shape):
        layer = self.layer
        # Random sums of `max_length` tokens are then as long as one token.
        start = keras.initializers.RandomNormal(stddev=layer.max_length**-0.5, seed=layer.seed)
        roles = 1 if layer.sharing == "key_value" else 2
        heads = 1 if layer.sharing else self.key_value_heads
        layer.sequence_kernel = layer.add_weight(
            name="sequence_kernel",
            shape=(roles, heads, layer.rank, layer.max_length),
            initializer=start,
        )
        return super().build(query_shape, value_shape, key_shape)


def _known_length(length, most):
    """The number of keys, if it is known, of which there are columns for `most`."""
    length = backend.known_size(length)
    if length is not None and length > most:
        raise ValueError(
            f"LinformerAttention has columns for max_length={most} keys. Received: {length}"
        )
    return length
