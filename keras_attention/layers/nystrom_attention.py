"""`NystromAttention`: softmax attention approximated through a few landmarks."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import masks, saving, shapes
from keras_attention.backend import backend
from keras_attention.kernels import nystrom
from keras_attention.layers.heads import EinsumHeads
from keras_attention.layers.low_rank_attention import LowRankAttention

ops = keras.ops


@saving.register
class NystromAttention(LowRankAttention):
    r"""Attention of the Nyströmformer, in linear time (Xiong et al. 2021, equations 13 to 15).

        A = softmax(Q̃ K̃^T / √key_dim)
        head = softmax(Q K̃^T / √key_dim) A⁺ (softmax(Q̃ K^T / √key_dim) V)

    The landmarks Q̃ and K̃ are the means of `num_landmarks` segments of the queries and of the
    keys, of real tokens alone. If there are at most as many tokens, each is a landmark. The
    pseudo-inverse A⁺ is that of `num_iterations` steps from Z_0 = A^T / (‖A‖_1 ‖A‖_∞),

        Z_{j+1} = Z_j (13 I − A Z_j (15 I − A Z_j (7 I − A Z_j))) / 4

    Args:
        num_heads, key_dim: as in `MultiHeadAttention`.
        num_landmarks: the number of segments.
        value_dim: features of each value head; defaults to `key_dim`.
        num_iterations: steps of the pseudo-inverse.
        conv_kernel_size: None, or the width of a depthwise convolution of the values, one for each
            head, that is added to its output (section "Nyströmformer", a skip connection).
        **kwargs: `output_shape`, `attention_axes` and `use_gate` of `MultiHeadAttention`, and
            all other arguments of `Attention` but those for which the product of three matrices
            has no meaning: `pattern`, `position`, `normalization`, `dropout`, `use_sink` and
            `scores_regularizer`.

    Call arguments are those of `MultiHeadAttention`, with masks of padding alone: padding on
    either side changes nothing.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask.

    Raises:
        ValueError, TypeError: a size, a slot or a mask is not as described; a call is causal, has a
            cache, or has arguments for pairs; with a convolution, keys are not as many as queries.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 500, 32))
    >>> layer = keras_attention.NystromAttention(num_heads=4, key_dim=8, num_landmarks=32)
    >>> layer(x).shape
    (2, 500, 32)
    """

    _fixed_arguments = (
        *LowRankAttention._fixed_arguments,
        *("normalization", "dropout", "use_sink", "scores_regularizer"),
    )

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        num_landmarks: int = 64,
        value_dim: int | None = None,
        num_iterations: int = 6,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.num_landmarks = shapes.check_count("num_landmarks", num_landmarks)
        self.num_iterations = shapes.check_count("num_iterations", num_iterations)
        self.conv_kernel_size = shapes.check_count(
            "conv_kernel_size", conv_kernel_size, optional=True
        )
        self.heads = NystromHeads(self)
        self._refuse_caches()

    @property
    def _order_matters(self):
        # Landmarks are means of real tokens, wherever these are.
        return self.conv_kernel_size is not None or self.score.needs_length

    def through_few(self, query, key, value, query_mask, key_mask, training):
        wide = shapes.accumulation_dtype(query, key, value)
        queries, real_queries = nystrom.landmarks(query, query_mask, self.num_landmarks)
        keys, real_keys = nystrom.landmarks(key, key_mask, self.num_landmarks)
        first, other = ops.cast(queries, wide), ops.cast(keys, wide)
        given = first, other, other, real_queries, real_keys
        between = self.over_few(*given, return_weights=True).weights
        found = self.over_few(queries, key, value, real_queries, key_mask).output
        # In half precision, what an inverse has multiplied might overflow.
        found = ops.transpose(ops.cast(found, wide), (0, 2, 1, 3))
        found = backend.matmul(nystrom.pseudo_inverse(between, self.num_iterations), found)
        found = ops.transpose(found, (0, 2, 1, 3))
        if keys.shape[2] < query.shape[2] and self.score.weights:
            # The score has weights for each head of the keys, fewer than what is summed has.
            given = query, keys, keys, query_mask, real_keys
            result = self.over_few(*given, return_weights=True)
            output = ops.einsum("bhts,bshv->bthv", ops.cast(result.weights, wide), found)
        else:
            keys = ops.repeat(keys, query.shape[2] // keys.shape[2], axis=2)
            result = self.over_few(query, keys, found, query_mask, real_keys)
            output = result.output
        output = ops.cast(output, value.dtype)
        if self.conv_kernel_size is not None:
            output = output + self._convolution(value, query, query_mask, key_mask)
        return result.replace(output=output)

    def _convolution(self, value, query, query_mask, key_mask):
        """Of values (B, S, G, V) along the sequence: (B, S, H, V)."""
        shapes.check_same(
            "With `conv_kernel_size`, lengths", query=query.shape[1], key=value.shape[1]
        )
        if query.shape[1] == 0:
            # PyTorch has no convolution of nothing.
            return ops.zeros_like(query[..., :1] * value[:, :, :1])
        batch, length, groups, size = backend.shape(value)
        heads = query.shape[2]
        value = ops.repeat(value, heads // groups, axis=2)
        kernel = ops.cast(ops.convert_to_tensor(self.conv_kernel), value.dtype)
        rows = ops.reshape(value, (batch, length, heads * size))
        if key_mask is not None:
            rows = masks.clear(rows, ops.broadcast_to(key_mask, (batch, length)))
        kernel = ops.repeat(kernel, size, axis=1)[..., None]
        found = ops.depthwise_conv(rows, kernel, padding="same", data_format="channels_last")
        return masks.clear(ops.reshape(found, (batch, length, heads, size)), query_mask)


class NystromHeads(EinsumHeads):
    """Heads, and the kernel of their convolution."""

    def output_shape(self, query_shape, value_shape):
        if self.layer.conv_kernel_size is not None and len(query_shape) == 3:
            sizes = {"query": query_shape[1], "key": value_shape[1]}
            shapes.check_same("With `conv_kernel_size`, lengths", **sizes)
        return super().output_shape(query_shape, value_shape)

    def build(self, query_shape, value_shape, key_shape):
        layer = self.layer
        if layer.conv_kernel_size is not None:
            layer.conv_kernel = layer.add_weight(
                name="conv_kernel",
                shape=(layer.conv_kernel_size, layer.num_heads),
                initializer=saving.clone_initializer(layer.kernel_initializer),
            )
        return super().build(query_shape, value_shape, key_shape)
