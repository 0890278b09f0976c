"""`NativeSparseAttention`: blocks in short, a few of them in full, and a window, under a gate."""

import functools
from typing import Any, ClassVar

from keras import ops

from keras_attention import patterns, saving
from keras_attention.backend import backend
from keras_attention.layers import kv_cache
from keras_attention.layers.heads import EinsumHeads
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.traits import OF_PAIRS
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known
from keras_attention.spec import Positions, cut, padded


class BlockAttention(MultiHeadAttention, saved=False):
    """The three attentions of `NativeSparseAttention`, by its attributes and its `SparseHeads`."""

    heads: "SparseHeads"
    preset_pattern = patterns.Causal()
    own_traits: ClassVar = {
        **dict.fromkeys(("has_weights", "merges"), False),
        **dict.fromkeys(("one_sequence", "needs_positions"), True),
        "refused": OF_PAIRS,
        "refusal": "attends to blocks of one text, and has no weights of pairs",
        "tokens_reason": "its blocks are of the real tokens, one after another",
    }

    @functools.cached_property
    def traits(self):
        made = functools.partial(kv_cache.Blocks, self.block_size, self.stride)
        return super().traits._replace(layouts=tuple(made(**x) for x in kv_cache.OF_BLOCKS))

    def _arrays(self, slots):
        found, sizes = super()._arrays(slots), (self.heads.groups, slots // self.stride + 1)
        return found | {f"block_{name}": (*sizes, shape[2]) for name, shape in found.items()}

    def _compressed(self, role, heads):
        """Keys or values (B, N, G, K) of the blocks of those of tokens (B, S, G, K)."""
        names = (f"compress_{role}_{name}" for name in ("position", "in", "out"))
        place, into, out = (ops.cast(getattr(self, name), heads.dtype) for name in names)
        batch, length, groups, size = backend.shape(heads)
        rows = ops.reshape(ops.swapaxes(heads, 1, 2), (batch * groups, length, size))
        rows = ops.conv(rows, into, self.stride, "valid", "channels_last")
        hidden = ops.reshape(rows, (batch, groups, *backend.shape(rows)[1:]))
        hidden = ops.silu(hidden + ops.einsum("glk,lkf->gf", place, into)[:, None])
        return ops.swapaxes(backend.matmul(hidden, out), 1, 2)

    def attend(self, query, key, value, positions, training=None, gates=(), **given):
        attend, wide = super().attend, shapes.accumulation_dtype(query, key, value)
        keys, values = (ops.split(x, 3, axis=2) for x in (key, value))
        gate, *short = gates
        if not short:
            # With blocks that have no end, and which no query sees.
            pairs = ("key", keys[0]), ("value", values[0])
            short = [self._compressed(n, padded(x, 1, 0, self.block_size)) for n, x in pairs]
        ends = ops.arange(backend.shape(short[0])[1], dtype="int32") * self.stride
        ends = ends + (self.block_size - 1)
        at, mask = Positions(positions.query, ends, consecutive=False), given["key_mask"]
        masks = [x for x in given["masks"] if x.shape[3] == 1]
        if mask is not None:
            masks.append(ops.take(padded(mask, 1, 0, self.block_size), ends, axis=1)[:, None, None])
        of_blocks = given | {"masks": tuple(masks), "key_mask": None, "return_weights": True}
        # In full precision, since it is the weights that choose.
        first = attend(query, short[0], ops.cast(short[1], wide), at, training, **of_blocks)
        chosen = self._chosen(ops.stop_gradient(first.weights), positions, backend.shape(key)[1])
        of_chosen = given | {"masks": (*given["masks"], *chosen)}
        second = attend(query, keys[1], values[1], positions, training, **of_chosen)
        given["pattern"] = patterns.SlidingWindow(self.window - 1, 0)
        third = attend(query, keys[2], values[2], positions, training, **given)
        found = enumerate(ops.cast(x.output, wide) for x in (first, second, third))
        output = sum(x * ops.cast(gate[..., n : n + 1], wide) for n, x in found)
        return second.replace(output=ops.cast(output, value.dtype))

    def _chosen(self, weights, positions, length):
        """The masks (B, H, T, S) of the selected tokens: one, or none where these are all."""
        size, number, groups = self.selected_size, self.num_selected, self.heads.groups
        batch, heads, queries, count = backend.shape(weights)
        if known(length) and length <= number * size:
            return ()
        # One may have no token, so that their tokens are surely more than those of any length.
        every = length // size + 1
        at, start = (ops.arange(n, dtype="int32") for n in (every, count))
        start = start[:, None] * self.stride
        # How many tokens the blocks of the two sizes share.
        shared = ops.minimum(start + self.block_size, at * size + size)
        shared = ops.maximum(shared - ops.maximum(start, at * size), 0)
        weights = ops.reshape(weights, (batch, groups, heads // groups, queries, count))
        worth = backend.matmul(ops.sum(weights, axis=2), ops.cast(shared, weights.dtype))
        own = positions.pairs[0] // size
        always = ops.logical_or(at == 0, at > own - self.num_near)
        worth = ops.where(at > own, -1.0, ops.where(always, 1e9, worth))
        # There may be fewer blocks, where their number is not known.
        best = ops.cast(ops.top_k(padded(worth, 3, 0, number, -1), number)[1], "int32")
        found = ops.any(ops.expand_dims(best, -1) == at, axis=-2)
        found = ops.repeat(ops.repeat(found, heads // groups, axis=1), size, axis=3)
        return (cut(found, 3, 0, length),)


class NativeSparseAttention(BlockAttention):
    r"""Native sparse attention of Yuan et al. 2025, sections 3.2 and 3.3, always causal.

    A head is `g_1 Attn(q, K̃, Ṽ) + g_2 Attn(q, K_I, V_I) + g_3 Attn(q, K_W, V_W)`, equation 5, with
    keys and values of three projections, and `g = sigmoid(x_t W_g)`:

    1. K̃ has a key for each block of `block_size` tokens, one of which begins every `stride`:
       `W_2 silu(W_1 [k_1 + e_1; …; k_l + e_l])`, e being learned, and W_1 having `key_dim` rows
       (equation 7). So has Ṽ. A query sees the blocks that end before it or at it.
    2. I are the tokens of `num_selected` blocks of `selected_size`: the first one, the `num_near`
       last ones up to the query's own, and those to which the first attention gives most weight,
       by strides that they share, of all heads of a key (equations 8 to 12).
    3. W are the last `window` tokens, with the query's own.

    All scores of the second are computed, and those of other blocks masked: it takes the time and
    the memory, O(T²), of attention with an `attention_mask`. Less would need a kernel of its own.

    Args:
        num_heads, key_dim, value_dim: as in `MultiHeadAttention`.
        block_size, stride, selected_size, num_selected, window, num_near: as above, by default the
            paper's. `stride` divides both sizes, of which `block_size` is not the larger one.
        **kwargs: all other arguments of `MultiHeadAttention` but `pattern`, `sliding_window`,
            `flash_attention`, `score`, `normalization`, `use_sink`, `scores_regularizer` and
            `reuse`. A `position` encodes tokens by their own positions alone, such as "rotary", or
            has a bias by positions alone, such as "alibi". A block's is that of its last token.

    Call arguments, results and errors are those of `MultiHeadAttention`, for one sequence with
    masks of padding alone: arguments for pairs are an error. Blocks are of real tokens, so that
    padding changes nothing, wherever it is.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 50, 32))
    >>> layer = keras_attention.NativeSparseAttention(num_heads=4, key_dim=8, window=16)
    >>> layer(x).shape
    (2, 50, 32)
    """

    _fixed_arguments = (
        *("pattern", "sliding_window", "flash_attention"),
        *("score", "normalization", "use_sink", "scores_regularizer", "reuse"),
    )

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        block_size: int = 32,
        stride: int = 16,
        selected_size: int = 64,
        num_selected: int = 16,
        window: int = 512,
        num_near: int = 2,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.stride = shapes.check_count("stride", stride)
        self.block_size = shapes.check_count("block_size", block_size)
        self.selected_size = shapes.check_count("selected_size", selected_size, block_size)
        self.num_near = shapes.check_count("num_near", num_near)
        self.num_selected = shapes.check_count("num_selected", num_selected, num_near + 1)
        self.window = shapes.check_count("window", window)
        own, divided = self.position, block_size % stride == selected_size % stride == 0
        alone = own is None or own.overrides == {"bias"}
        alone = alone or (own.encodes_alone and not own.has_query_bias)
        if not (divided and alone and (own is None or own.counts)):
            raise ValueError(
                "`stride` must divide `block_size` and `selected_size`, and `position` encode a "
                "token by its own position alone, or have a bias of positions. Received: "
                f"{stride=}, {block_size=}, {selected_size=}, position={own!r}"
            )
        self.heads = SparseHeads(self)


class SparseHeads(EinsumHeads):
    """Keys (B, S, 3G, K) and values of three attentions, and the gates (B, T, H, 3) of a token."""

    def __init__(self, layer):
        super().__init__(layer)
        self.groups, self.key_value_heads = self.key_value_heads, 3 * self.key_value_heads

    def build(self, query_shape, value_shape, key_shape):
        layer, made = self.layer, super().build(query_shape, value_shape, key_shape)
        self.features["gates"], gates = query_shape[-1], (layer.num_heads, 3)
        made["gates"] = self._einsum("gates", query_shape, 1, gates, activation="sigmoid")
        for role, size in (("key", layer.key_dim), ("value", layer.value_dim)):
            into = layer.block_size, size, layer.key_dim
            sizes = {"position": (self.groups, *into[:2]), "in": into, "out": into[:0:-1]}
            for part, shape in sizes.items():
                start = saving.clone_initializer(layer.kernel_initializer)
                weight = layer.add_weight(shape, start, name=f"compress_{role}_{part}")
                setattr(layer, weight.name, weight)
        return made

    def split_all(self, query, key, value):
        return [*super().split_all(query, key, value), self.split(query, "gates")]
