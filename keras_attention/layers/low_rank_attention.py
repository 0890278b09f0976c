"""Attention to few keys, which are made of all tokens: `LinformerAttention`, `NystromAttention`.

The weights of all pairs are a product of two narrow matrices. Layers take the road of
`Attention.call`, and attend, instead of to all keys, to few that are made of all tokens. So there
is no weight for a pair, and no order: each of these keys has later tokens too.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.kernels.linear_time import nystrom
from keras_attention.layers.heads import EinsumHeads
from keras_attention.layers.heads.axes import Axes
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.traits import OF_PAIRS
from keras_attention.sequences import masks, shapes
from keras_attention.spec import AttentionResult, Positions


class LowRankAttention(MultiHeadAttention, saved=False):
    """Multi-head attention through few keys.

    Subclasses have `through_few(query, key, value, query_mask, key_mask, training)`: the
    `AttentionResult` of heads (B, T, H, K), (B, S, G, K) and (B, S, G, V), with masks (B, T) and
    (B, S), True = a real token, or None.
    """

    through_few: Callable[..., AttentionResult]
    _fixed_arguments: tuple[str, ...]
    _fixed_arguments = ("pattern", "position", "sliding_window", "flash_attention", "reuse")
    own_traits: ClassVar = {
        "has_weights": False,
        "needs_positions": True,
        "refused": (*OF_PAIRS, "use_causal_mask"),
        "refusal": "attends to vectors of all tokens: it has no weights of pairs and is not causal",
        "no_decoding_reason": "it attends to vectors made of all tokens, later ones too",
        "no_cache_reason": "it attends to vectors made of all tokens, later ones too",
        "tokens_reason": "its keys are made of the real tokens, one after another",
    }

    def attend(self, query, key, value, positions, training=None, **given):
        query_mask, key_mask = positions.query_mask, given["key_mask"]
        return self.through_few(query, key, value, query_mask, key_mask, training)

    def over_few(self, query, key, value, query_mask, key_mask, training=None, **given):
        """Attention of the pipeline, over other queries or keys than those of the call."""
        at, restrict = Positions.of_heads(query, key), masks.of_pairs(query_mask, key_mask, None)
        return super().attend(query, key, value, at, training, masks=restrict, **given)


Sharing = Literal["heads", "key_value"]
InitialScale = Literal["head", "batch"]


class LinformerAttention(LowRankAttention):
    r"""Attention to projections of the sequence, in linear time (Wang et al. 2020, equation 7).

        head_i = softmax(Q W_i^Q (E_i K W_i^K)^T / √key_dim) F_i V W_i^V

    E and F, (rank, S), are learned: each of the `rank` keys is a weighted sum of all tokens, and
    so is its value. A shorter sequence uses the columns of its length.

    Args:
        max_length: the largest number of keys, padding included. More of them are a `ValueError`
            if their number is known statically, and otherwise an error of the backend.
        rank: the number of rows to which keys and values are projected.
        sharing: which projections are one (section 4): None for E and F of each key head, "heads"
            for one E and one F, "key_value" for E = F of all heads.
        **kwargs: all other arguments of `MultiHeadAttention` but `pattern`, `position`,
            `sliding_window`, `flash_attention` and `reuse`.

    Call arguments, results and errors are those of `MultiHeadAttention`, with masks of padding
    alone: a call that is causal, has a cache or arguments for pairs is an error. A masked token
    adds nothing, and columns count real tokens, so padding changes nothing wherever it is.

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
        self.sharing = shapes.check_choice("sharing", sharing, (None, *get_args(Sharing)))
        self.heads = LinformerHeads(self)

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
    """Heads, and the weights E and F that project their sequence."""

    # Not in `check_shapes`: files of PyTorch are built with lengths that Keras made up.
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
        shape = (roles, heads, layer.rank, layer.max_length)
        layer.sequence_kernel = layer.add_weight(shape, start, name="sequence_kernel")
        return super().build(query_shape, value_shape, key_shape)


def _known_length(length, most):
    """The number of keys, if it is known, of which there are columns for `most`."""
    length = backend.known_size(length)
    if length is not None and length > most:
        raise ValueError(
            f"LinformerAttention has columns for max_length={most} keys. Received: {length}"
        )
    return length


class NystromAttention(LowRankAttention):
    r"""Attention of the Nyströmformer, in linear time (Xiong et al. 2021, equations 13 to 15).

        A = softmax(Q̃ K̃^T / √key_dim)
        head = softmax(Q K̃^T / √key_dim) A⁺ (softmax(Q̃ K^T / √key_dim) V)

    The landmarks Q̃ and K̃ are the means of `num_landmarks` segments of the queries and of the
    keys, of real tokens alone. If there are at most as many tokens, each is a landmark. The
    pseudo-inverse A⁺ is that of `num_iterations` steps from Z_0 = A^T / (‖A‖_1 ‖A‖_∞),

        Z_{j+1} = Z_j (13 I − A Z_j (15 I − A Z_j (7 I − A Z_j))) / 4

    Args:
        num_landmarks: the number of segments.
        num_iterations: steps of the pseudo-inverse.
        initial_scale: of whose A the norms in Z_0 are: "head" for each by itself; "batch" for the
            largest of all heads and rows, as in the published models, by which a row's output
            depends on the other rows of its batch.
        conv_kernel_size: None, or the width of a depthwise convolution of the values, one for each
            head, that is added to its output (section "Nyströmformer", a skip connection). Keys
            must then be as many as queries.
        **kwargs: all other arguments of `LinformerAttention` but those for which the product of
            three matrices has no meaning: `normalization`, `dropout`, `use_sink` and
            `scores_regularizer`.

    Call arguments, results and errors are those of `LinformerAttention`: padding on either side
    changes nothing.

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
        initial_scale: InitialScale = "head",
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.num_landmarks = shapes.check_count("num_landmarks", num_landmarks)
        self.num_iterations = shapes.check_count("num_iterations", num_iterations)
        self.conv_kernel_size = shapes.check_optional_count("conv_kernel_size", conv_kernel_size)
        self.initial_scale = shapes.check_choice(
            "initial_scale", initial_scale, get_args(InitialScale)
        )
        self.heads = NystromHeads(self)

    @functools.cached_property
    def traits(self):
        # Landmarks are means of real tokens, wherever these are.
        needed = self.conv_kernel_size is not None or self.score.needs_length
        return super().traits._replace(needs_positions=needed)

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
        one_scale = self.initial_scale == "batch"
        inverse = nystrom.pseudo_inverse(between, self.num_iterations, one_scale)
        found = backend.matmul(inverse, found)
        found = ops.transpose(found, (0, 2, 1, 3))
        if keys.shape[2] < query.shape[2] and self.score.weights:
            # The score has weights for each head of the keys, fewer than what is summed has.
            result = self.over_few(query, keys, keys, query_mask, real_keys, return_weights=True)
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
        """The depthwise convolution of values (B, S, G, V) along the sequence, (B, S, H, V)."""
        sizes = {"query": query.shape[1], "key": value.shape[1]}
        shapes.check_same("With `conv_kernel_size`, lengths", **sizes)
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
            shape = (layer.conv_kernel_size, layer.num_heads)
            start = saving.clone_initializer(layer.kernel_initializer)
            layer.conv_kernel = layer.add_weight(shape, start, name="conv_kernel")
        return super().build(query_shape, value_shape, key_shape)
