"""`LongformerAttention`: a window, and global tokens with projections of their own."""

import copy
import functools
from typing import Any, ClassVar

from keras import ops

from keras_attention import patterns, saving
from keras_attention.backend import backend
from keras_attention.core import parts
from keras_attention.core.hints import Cache, Tensor, Tensors
from keras_attention.layers.heads import ROLES, EinsumHeads
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.sequences import masks, sequence, shapes
from keras_attention.spec import Positions, mapped, part


class GlobalTokensAttention(MultiHeadAttention, saved=False):
    """Two attentions: the first `num_global` queries over all keys, and the others by a pattern.

    The heads of a subclass return keys and values (B, 2S, G, K): the first S are those of the
    pattern, and the others those of the first queries.
    """

    num_global: int
    max_global: int | None
    heads: Any

    own_traits: ClassVar = {
        "needs_positions": True,
        "takes": ("global_mask",),
        "refused": ("positions", "use_causal_mask"),
        "refusal": "counts global tokens from the first position, and they attend to later ones",
        "no_decoding_reason": "its global tokens attend to later ones",
        "no_cache_reason": "its global tokens attend to later ones",
    }

    def call(  # type: ignore[override]
        self,
        query: Tensors,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        attention_bias: Tensor | None = None,
        positions: Tensors | None = None,
        segment_ids: Tensors | None = None,
        cache: Cache | None = None,
        mask: Tensors | bool | None = False,
        global_mask: Tensor | None = None,
    ) -> Tensors:
        x, layout = self._read(
            *((query, value, key), (query_mask, value_mask, key_mask), mask, cache),
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
            attention_bias=attention_bias,
            positions=positions,
            segment_ids=segment_ids,
            global_mask=global_mask,
        )
        arranged = None
        if global_mask is not None:
            given = masks.boolean("global_mask", global_mask), self.max_global or self.num_global
            chosen, count = given
            arranged = functools.partial(sequence.Pairs.with_first, chosen=chosen, count=count)
        return self._attended(
            *(x, layout, cache, training, return_attention_scores, use_causal_mask, arranged)
        )

    def _read(self, tensors, explicit, mask, cache, *, global_mask=None, **given):
        x, layout = super()._read(tensors, explicit, mask, cache, **given)
        if global_mask is None:
            return x, layout
        chosen = masks.boolean("global_mask", global_mask)
        masks.check_axes(chosen, x.query.shape[:2], "query", "global_mask")
        alike = x.one_sequence and x.key is x.value and x.query_mask is x.key_mask
        if not alike or self.position is not None:
            raise ValueError(
                "`global_mask` is of one sequence with one mask, and a layer without `position`: "
                "its tokens come to the beginning of their rows. Received: "
                f"{'two sequences or masks' if not alike else f'position={self.position!r}'}"
            )
        return x, layout

    def extended(self, x, heads=None):
        if heads is None and x.first is not None:
            chosen = copy.copy(self.heads)
            chosen.first = x.first
            heads = self.split_all(x, chosen)
        return super().extended(x, heads)

    def attend(self, query, key, value, positions, training=None, first=None, **given):
        query_mask, seen = positions.query_mask, positions.key_mask
        length, count = backend.shape(key)[1] // 2, first or self.num_global
        if first is not None:
            given["pattern"] = self.pattern_of(first)
        (near_key, key), (near_value, value) = (
            (x[:, :length], x[:, length:]) for x in (key, value)
        )
        at = Positions.of_heads(query, near_key).of_padded(query_mask, seen)
        others = super().attend(query, near_key, near_value, at, training, **given)
        given |= {**mapped(given, part("t", 0, count)), "pattern": None}
        query, query_mask = (x if x is None else x[:, :count] for x in (query, query_mask))
        at = Positions.of_heads(query, key).of_padded(query_mask, seen)
        first = super().attend(query, key, value, at, training, **given)
        return _joined(first, others, count)


def _joined(first, others, count):
    """One result: of the first `count` queries from `first`, of all later ones from `others`."""

    def rows(name, axis):
        found = [getattr(first, name), getattr(others, name)]
        if found[0] is None and found[1] is None:
            return None
        if name in ("has_keys", "mask"):
            found = [_whole(x, result, name) for x, result in zip(found, results, strict=True)]
        rest = found[1][(*(slice(None),) * axis, slice(count, None))]
        return ops.concatenate([found[0], rest], axis=axis)

    results = first, others
    return others.replace(
        output=rows("output", 1),
        **{name: rows(name, 2) for name in ("weights", "has_keys", "mask", "log_probability")},
    )


def _whole(array, result, name):
    """A boolean array of a result with all its axes; None stands for True."""
    batch, length, heads, _ = backend.shape(result.output)
    keys = backend.shape(result.weights)[3:] if name == "mask" else ()
    array = ops.ones((), "bool") if array is None else array
    return ops.broadcast_to(array, (batch, heads, length, *keys))


class LongformerHeads(EinsumHeads):
    """Queries (B, T, H, K), the first of which are global, and keys and values (B, 2S, G, K).

    Of these the first S are those of the window, and the others those of global tokens.
    """

    # How many are global; None for `num_global` of the layer.
    first: int | None = None

    def build(self, query_shape, value_shape, key_shape):
        made = super().build(query_shape, value_shape, key_shape)
        for role, shape in zip(ROLES, (query_shape, key_shape, value_shape), strict=True):
            made[f"global_{role}"] = self._einsum(f"global_{role}", shape, 1, self.sizes[role])
        return made

    def _has_bias(self, name):
        return super()._has_bias(name.removeprefix("global_"))

    def split_all(self, query, key, value):
        heads, count = super().split_all(query, key, value), self.first or self.layer.num_global
        given = zip(ROLES, (query[:, :count], key, value), strict=True)
        q, k, v = (self.project(f"global_{role}", x, *self.sizes[role]) for role, x in given)
        pairs = [q, heads[0][:, count:]], [heads[1], k], [heads[2], v]
        return [ops.concatenate(pair, axis=1) for pair in pairs]


class LongformerAttention(GlobalTokensAttention):
    r"""Attention of Longformer (Beltagy et al. 2020, section 3.1), in linear time.

    Each token attends to those at most `window` positions away, and to the first `num_global`
    tokens. These attend to all, and have projections of their own, W', for their queries and for
    the keys and values that they attend to:

        head_i = softmax(q_i K^T / √key_dim) V      over j with |i − j| ≤ window or j < num_global
        head_i = softmax(q'_i K'^T / √key_dim) V'   over all j, for i < num_global

    A global token is one that sums the text up, such as that of a class, or one of a question. Pad
    on the right, or pass positions="tokens": they are the first of a row. With `global_mask` each
    row has its own, anywhere. For global tokens without projections of their own see
    `patterns.Global`.

    Args:
        window: how many positions to either side a token sees; half of `attention_window` in
            files of `transformers`.
        num_global: how many of the first tokens are global.
        max_global: the most tokens of a row that `global_mask` may choose, for all of which a call
            with it has room; None for `num_global`.
        **kwargs: all other arguments of `MultiHeadAttention` but `pattern`, `sliding_window`,
            `attention_axes`, `flash_attention` and `reuse`.

    Call arguments, results and errors are those of `MultiHeadAttention`. A call that is causal, has
    a cache, or has integers as `positions` is an error. There is one argument more, `global_mask`:
    boolean (B, T), True = a global token, as `global_attention_mask` of `transformers`; or None for
    the first ones. Of more than `max_global` in a row, the first are global. It is for
    self-attention with one mask, and without `position`. A `TransformerBlock` with this layer and
    an `Encoder` of such blocks take it too.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 1000, 32))
    >>> layer = keras_attention.LongformerAttention(4, 8, window=16, num_global=1)
    >>> layer(x).shape
    (2, 1000, 32)
    >>> output, scores = layer(x, return_attention_scores=True)
    >>> [int(keras.ops.count_nonzero(scores[0, 0, query])) for query in (0, 1, 500)]
    [1000, 18, 34]
    """

    _fixed_arguments = ("pattern", "sliding_window", "attention_axes", "flash_attention", "reuse")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        window: int,
        num_global: int = 1,
        value_dim: int | None = None,
        *,
        max_global: int | None = None,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.window = shapes.check_count("window", window)
        self.num_global = shapes.check_count("num_global", num_global)
        self.max_global = shapes.check_optional_count("max_global", max_global)
        self.preset_pattern = self.pattern_of(self.num_global)
        self.heads = LongformerHeads(self)

    def pattern_of(self, count: int) -> patterns.Pattern:
        """The keys that a query sees which is not global, where `count` tokens are."""
        return patterns.SlidingWindow(self.window, self.window) | patterns.Prefix(count)

    global_query_dense = parts.part("_global_query_dense", "It projects global tokens' queries.")
    global_key_dense = parts.part("_global_key_dense", "It projects the keys that these see.")
    global_value_dense = parts.part("_global_value_dense", "It projects the values of the keys.")
