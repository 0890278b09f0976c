"""`NativeSparseAttention`: blocks in short, a few of them in full, and a window, under one gate."""

import functools
from typing import Any, ClassVar

from keras import ops

from keras_attention import patterns, positions, saving
from keras_attention.backend import backend
from keras_attention.core import parts
from keras_attention.kernels.sparse import selection
from keras_attention.layers import kv_cache
from keras_attention.layers.heads import EinsumHeads, projections
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.layers.traits import OF_PAIRS
from keras_attention.sequences import shapes
from keras_attention.spec import Positions, cut


class NativeSparseAttention(MultiHeadAttention):
    r"""Native sparse attention of Yuan et al. 2025, sections 3.2 and 3.3, always causal.

    Each query attends three times, to keys and values of three projections, and gates of its token,
    g = sigmoid(x_t W_g) for each head, weigh the outputs (equation 5):

        head_t = g_1 Attn(q_t, K̃, Ṽ) + g_2 Attn(q_t, K[I_t], V[I_t]) + g_3 Attn(q_t, near K, near V)

    1. K̃ has one key per block of `block_size` tokens, and a block begins every `stride` of them:
       `W_2 silu(W_1 [k_1 + e_1; …; k_l + e_l])`, with vectors e of each place in a block
       (equation 7); so has Ṽ. A query sees the blocks that end at its token or before.
    2. I_t are the tokens of `num_selected` blocks of `selected_size` tokens: the first
       `num_first`, the `num_near` last ones, the query's own included, and those to which the first
       attention gives most weight, summed over the heads that share a key (equations 8 to 11).
    3. The last `window` tokens, the query's own included.

    Scores are computed of all pairs, and those of other blocks masked: it takes the time and the
    memory of attention under an `attention_mask`, twice. It is for models trained so; to read fewer
    keys needs a kernel for GPUs, which is not here.

    Args:
        num_heads, key_dim, value_dim: as in `MultiHeadAttention`.
        block_size, stride, selected_size: l, d and l' of the paper, whose sizes are the defaults.
            `stride` must divide the other two, and `selected_size` be at least `block_size`.
        num_selected, num_first, num_near: numbers of blocks; the first includes the other two.
        window: number of tokens.
        intermediate_dim: rows of W_2; `key_dim` by default.
        position: of queries and keys. That of a block is its last token's. It must depend on the
            distance alone: "rotary", without scalings that depend on the length, or a position that
            has a bias alone, such as "alibi".
        use_bias: whether projections and gates have biases.
        **kwargs: all other arguments of `MultiHeadAttention` but `pattern`, `sliding_window`,
            `flash_attention`, `score`, `normalization`, `use_sink` and `scores_regularizer`.

    Call arguments, results and errors are those of `MultiHeadAttention`, for one sequence, with
    masks of padding alone: arguments for pairs are an error. Blocks are of real tokens, so padding
    changes nothing wherever it is. A cache has the keys and values of all three projections, and of
    the blocks.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 50, 32))
    >>> layer = keras_attention.NativeSparseAttention(
    ...     4, 8, block_size=4, stride=2, selected_size=8, num_selected=4, window=8
    ... )
    >>> first, cache = layer(x[:, :49], cache=layer.make_cache(batch_size=2, length=50))
    >>> last, cache = layer(x[:, 49:], cache=cache)
    >>> bool(keras.ops.max(keras.ops.abs(last - layer(x)[:, 49:])) < 1e-5)
    True
    """

    preset_pattern = patterns.Causal()
    own_traits: ClassVar = {
        "has_weights": False,
        "one_sequence": True,
        "needs_positions": True,
        "merges": False,
        "refused": OF_PAIRS,
        "refusal": "attends to blocks of one text, and has no weights of pairs",
        "tokens_reason": "its blocks are of the real tokens, one after another",
    }
    _fixed_arguments = (
        *("pattern", "sliding_window", "flash_attention"),
        *("score", "normalization", "use_sink", "scores_regularizer"),
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
        num_first: int = 1,
        num_near: int = 2,
        intermediate_dim: int | None = None,
        position: positions.PositionLike | None = None,
        use_bias: bool = False,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        use_bias = shapes.check_flag("use_bias", use_bias)
        super().__init__(
            num_heads, key_dim, value_dim, use_bias=use_bias, position=position, **kwargs
        )
        self.block_size = shapes.check_count("block_size", block_size)
        self.stride = shapes.check_count("stride", stride)
        self.selected_size = shapes.check_count("selected_size", selected_size, block_size)
        self.num_first = shapes.check_count("num_first", num_first, minimum=0)
        self.num_near = shapes.check_count("num_near", num_near)
        self.num_selected = shapes.check_count("num_selected", num_selected, num_first + num_near)
        self.window = shapes.check_count("window", window)
        self.intermediate_dim = shapes.check_optional_count("intermediate_dim", intermediate_dim)
        if block_size % stride or selected_size % stride:
            raise ValueError(
                "`stride` must divide `block_size` and `selected_size`. Received: "
                f"stride={stride}, block_size={block_size}, selected_size={selected_size}"
            )
        own = self.position
        if own is not None and not (
            own.counts and (own.encodes_alone or own.overrides == {"bias"})
        ):
            raise ValueError(
                "`position` must encode a token by its position alone, or have a bias alone. "
                f"Received: position={own!r}"
            )
        self.heads = SparseHeads(self)

    branch_gate_dense = parts.part("_branch_gate_dense", "The layer that makes the three gates.")

    @functools.cached_property
    def traits(self):
        return super().traits._replace(layouts=kv_cache.of_blocks(self.block_size, self.stride))

    def _stored_arrays(self, slots):
        found = super()._stored_arrays(slots)
        groups, number = self.heads.key_value_heads, selection.count(slots, self.stride)
        return found | {f"block_{n}": (groups, number, x[2]) for n, x in found.items()}

    def compressed(self, role, blocks):
        """The keys or the values (B, N, G, K) of blocks (B, N, l, G, K) of those of tokens."""
        blocks = ops.swapaxes(blocks, 2, 3)
        places = ops.convert_to_tensor(getattr(self, f"compress_{role}_position"))
        batch, number, groups, size, features = backend.shape(blocks)
        blocks = blocks + ops.cast(places, blocks.dtype)
        rows = ops.reshape(blocks, (batch, number, groups, size * features))
        for name in ("in", "out"):
            rows = projections.apply(self, self.heads.dense(f"compress_{role}_{name}"), rows)
        return rows

    def attend(self, query, key, value, positions, training=None, gates=(), **given):
        gate, *short = gates
        keys, values = (ops.split(x, 3, axis=2) for x in (key, value))
        attend, sizes = super().attend, (self.block_size, self.stride)
        if not short:
            pairs = ("key", keys[0]), ("value", values[0])
            short = [self.compressed(role, selection.blocks(x, *sizes)) for role, x in pairs]
        wide = shapes.accumulation_dtype(query, key, value)
        number = backend.shape(short[0])[1]
        ends = self.block_size - 1 + self.stride * ops.arange(number, dtype="int32")
        masks = [mask for mask in given["masks"] if mask.shape[3] == 1]
        if given["key_mask"] is not None:
            real = selection.blocks(given["key_mask"], *sizes)[:, :, -1]
            masks.append(real[:, None, None])
        at = Positions(positions.query, ends, consecutive=False)
        of_blocks = given | {"masks": tuple(masks), "key_mask": None, "return_weights": True}
        # The weights that choose are not rounded.
        first = attend(query, short[0], ops.cast(short[1], wide), at, training, **of_blocks)
        of_tokens = given | {"masks": (*given["masks"], *self._selected(first, key, positions))}
        second = attend(query, keys[1], values[1], positions, training, **of_tokens)
        given["pattern"] = patterns.SlidingWindow(self.window - 1, 0)
        third = attend(query, keys[2], values[2], positions, training, **given)
        found = [ops.cast(x.output, wide) for x in (first, second, third)]
        output = sum(x * ops.cast(gate[..., n : n + 1], wide) for n, x in enumerate(found))
        # A query with any key has the first block, or its own.
        return second.replace(output=ops.cast(output, value.dtype))

    def _selected(self, result, key, positions):
        """The masks (B, H, T, S) of the selected tokens: one, or none if these are all."""
        groups, size = self.heads.key_value_heads, self.selected_size
        weights = ops.stop_gradient(result.weights)
        sizes = self.block_size // self.stride, size // self.stride
        weights = selection.importance(weights, groups, *sizes)
        own, counts = positions.pairs[0] // size, (self.num_first, self.num_near)
        found = selection.chosen(weights, own, self.num_selected, *counts)
        if found is None:
            return ()
        found = ops.repeat(ops.repeat(found, self.num_heads // groups, axis=1), size, axis=3)
        return (cut(found, 3, 0, backend.shape(key)[1]),)


class SparseHeads(EinsumHeads):
    """Keys (B, S, 3G, K) and values of three attentions, and the gates (B, T, H, 3) of a token."""

    def count(self, role):
        return super().count(role) * (3 if role in ("key", "value") else 1)

    @property
    def stored(self):
        return self.count("key"), self.layer.key_dim, self.layer.value_dim

    def build(self, query_shape, value_shape, key_shape):
        layer, gates = self.layer, (self.layer.num_heads, 3)
        made = super().build(query_shape, value_shape, key_shape)
        self.features["branch_gate"] = query_shape[-1]
        given = "branch_gate", query_shape, 1, gates
        made["branch_gate"] = self._einsum(*given, activation="sigmoid")
        hidden = layer.intermediate_dim or layer.key_dim
        for role, size in (("key", layer.key_dim), ("value", layer.value_dim)):
            name, places = f"compress_{role}", (self.key_value_heads, layer.block_size, size)
            weight = layer.add_weight(places, "zeros", name=f"{name}_position")
            setattr(layer, f"{name}_position", weight)
            features = layer.block_size * size
            for end, units, inputs, activation in (
                ("in", hidden, features, "silu"),
                ("out", size, hidden, None),
            ):
                given = f"{name}_{end}", units, (None, inputs), False, activation
                made[f"{name}_{end}"] = projections.dense(layer, *given)
        return made

    def split_all(self, query, key, value):
        heads = super().split_all(query, key, value)
        return [*heads, self.split(query, "branch_gate")]
