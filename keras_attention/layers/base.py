"""`BaseAttention`: heads, memory and the road of a call, under every attention layer."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import keras
import numpy as np
from keras import ops

from keras_attention import patterns, saving
from keras_attention.backend import backend
from keras_attention.core import parts, tap
from keras_attention.core.hints import (
    Cache,
    Constraint,
    Dtype,
    Initializer,
    Regularizer,
    Tensor,
    Tensors,
)
from keras_attention.layers import kv_cache, traits
from keras_attention.layers.blocks import norms
from keras_attention.layers.heads import ROLES, DenseHeads, EinsumHeads, Heads, reuse
from keras_attention.layers.traits import Traits
from keras_attention.sequences import inputs, masks, sequence, shapes
from keras_attention.spec import Positions

NamedQkNorm = Literal[False, "rms", "layer"]
QK_NORMS = get_args(NamedQkNorm)
UseBias: TypeAlias = bool | Literal["qkv", "qvo"]
QkNorm: TypeAlias = NamedQkNorm | keras.layers.Layer
Reuse: TypeAlias = Literal[None, "key_value", "value", "value_residual"]
ValueNorm: TypeAlias = Literal[False, "rms"]


class BaseAttention(saving.ConfigurableLayer, saved=False):
    """A layer that splits its inputs into heads, attends, and merges the heads.

    A call reads sequences, splits them into heads, extends these by those of a cache, attends and
    merges the heads. Subclasses implement `attend`: softmax attention by its slots, linear time by
    a recurrence. The arguments and those of a call are described by `Attention`.
    """

    _masks = (
        "`query_mask` (B, T) and `value_mask` (B, S) for padding, and `attention_mask`, (T, S), "
        "(B, T, S) or (B, H, T, S), for pairs"
    )
    _unrounded = ("attention_bias", "cache")

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        use_bias: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None,
        seed: int | None = None,
        num_key_value_heads: int | None = None,
        qk_norm: QkNorm = False,
        clip_qkv: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_heads = shapes.check_count("num_heads", num_heads)
        self.num_key_value_heads = shapes.check_optional_count(
            "num_key_value_heads", num_key_value_heads
        )
        if num_key_value_heads is not None and num_heads % num_key_value_heads:
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. Received: "
                f"num_key_value_heads={num_key_value_heads}, num_heads={num_heads}"
            )
        self.key_dim = shapes.check_optional_count("key_dim", key_dim)
        value_dim = shapes.check_optional_count("value_dim", value_dim)
        self.value_dim = self.key_dim if value_dim is None else value_dim
        self.use_bias: UseBias = shapes.check_flag("use_bias", use_bias)
        self._keep_options("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._keep_options("bias", bias_initializer, bias_regularizer, bias_constraint)
        # For projections, as in Keras's layer; `Layer.activity_regularizer` is for the output.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.seed = shapes.check_seed("seed", seed)
        self.qk_norm = norms.check("qk_norm", qk_norm, QK_NORMS)
        self.clip_qkv = shapes.check_optional_positive("clip_qkv", clip_qkv)
        self.heads = Heads(self) if key_dim is None else DenseHeads(self)
        # Slots with weights. On PyTorch an attribute of the class would hide them.
        self.score: Any = None
        self.normalization: Any = None
        self.position: Any = None

    # Slots without weights, of which a subclass may have some.
    pattern: patterns.Pattern | None = None
    scores_regularizer: Any = None
    # What it takes of the keys and values of another layer, a `Reuse`.
    reuse: Reuse = None
    value_norm: ValueNorm = False

    # What presets declare, and set in their constructors

    # A pattern in addition to the slot's.
    preset_pattern: patterns.Pattern | None = None
    # A position that comes before the slot's, and sees heads that the slot's has not encoded.
    preset_position: Any = None
    # The traits that do not follow from the slots; those of base classes are added.
    own_traits: ClassVar[dict[str, Any]] = {}
    # Whether it may return the log-probability of the choices of hard attention.
    returns_log_probability = False

    @functools.cached_property
    def traits(self) -> Traits:
        """What the layer has, needs and refuses, as its slots and heads imply."""
        return traits.of_slots(self)

    def whole_pattern(self, causal=False):
        """The pattern slot combined with all other patterns, or None."""
        found = [self.pattern, self.preset_pattern]
        if causal and not any(isinstance(pattern, patterns.Causal) for pattern in found):
            found.append(patterns.Causal())
        return patterns.every(*found)

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = self._shapes(query_shape, value_shape, key_shape)
        made = self.heads.build(query_shape, value_shape, key_shape)
        if self.position is not None and self.position.own_projections:
            made |= self.heads.of_table(self.position.table_roles, query_shape)
        for role, dense in made.items():
            setattr(self, f"_{role}_dense", dense)
        of_inputs = {"query": query_shape, "key": key_shape}
        heads = {role: self.heads.shape(role, shape) for role, shape in of_inputs.items()}
        for role in self.heads.own[:2] if self.qk_norm else ():
            given = self.qk_norm, f"{role}_norm", heads[role], self.dtype_policy
            setattr(self, f"_{role}_norm", norms.make(*given, center=False))
        if self.position is not None:
            self.position.build_inputs(query_shape, key_shape)
            self.position.build_values(self.heads.shape("value", value_shape))
        self._build_slots(*heads.values())
        # Computed once: it depends on the arguments alone.
        self._pattern, self._causal_pattern = self.whole_pattern(), self.whole_pattern(causal=True)

    def _build_slots(self, query_heads, key_heads):
        """Makes the weights of slots, for heads of these shapes."""
        for slot in (self.score, self.normalization, self.position):
            if slot is not None and not slot.built:
                slot.build(query_heads, key_heads)

    query_dense = parts.part("_query_dense", "The layer that projects the query.")
    key_dense = parts.part("_key_dense", "The layer that projects the key.")
    value_dense = parts.part("_value_dense", "The layer that projects the value.")
    query_norm = parts.part("_query_norm", "The norm of query heads, with `qk_norm`.")
    key_norm = parts.part("_key_norm", "The norm of key heads, with `qk_norm`.")

    # A call: read → split → extend → attend → join

    def call(
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
        # Keras would replace None by the mask, and add its computation to the graph.
        mask: Tensors | bool | None = False,
        key_value: dict[str, Tensor] | None = None,
        return_key_value: bool = False,
    ) -> Tensors:
        x, layout = self._read(
            *((query, value, key), (query_mask, value_mask, key_mask), mask, cache),
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
            attention_bias=attention_bias,
            positions=positions,
            segment_ids=segment_ids,
            key_value=key_value,
            return_key_value=return_key_value,
        )
        return self._attended(
            *(x, layout, cache, training, return_attention_scores, use_causal_mask)
        )

    def _attended(
        self, x, layout, cache, training, return_attention_scores, use_causal_mask, arranged=None
    ):
        """What a call returns, of its `Pairs`; `arranged` puts their tokens in another order."""
        axes, mask, bias = self.heads.axes, x.attention_mask, x.attention_bias
        if axes is not None or mask is not None or bias is not None:
            x = self.heads.restricted(x)
        of_output = x.query_mask
        if arranged is not None:
            x = arranged(x)
        elif x.counts_tokens:
            x = self._counted(x, layout)

        extended = layout.extend(self, cache, x) if layout.arrays else self.extended(x)
        extended, handed = reuse.handed(self, extended, x) if x.hands_on else (extended, None)
        more: dict[str, Any] = {"gates": extended.gates} if extended.gates else {}
        if layout.is_state:
            more["state"] = extended.cache
        if x.first is not None:
            more["first"] = x.first
        listeners = tap.of(self) if tap.state.listeners and self.traits.has_weights else []
        if listeners:
            more["multiplier"] = self.heads.of_attentions(x.factor(listeners, self))
        wanted = return_attention_scores or bool(listeners)
        more |= {"training": training, "encoded": extended.encoded, "return_weights": wanted}
        if extended.earlier is not None:
            more["return_lse"] = True
        result = self.attend(
            *(extended.query, extended.key, extended.value, extended.positions),
            key_mask=extended.key_mask,
            masks=extended.masks,
            pattern=self._causal_pattern if layout.appends or use_causal_mask else self._pattern,
            biases=() if x.attention_bias is None else (x.attention_bias,),
            segment_ids=x.segment_ids,
            **more,
        )
        if extended.earlier is not None:
            result = kv_cache.merged(self.attend(**extended.earlier, **more), result)
        if self.scores_regularizer is not None and not layout.appends:
            weights = ops.cast(result.weights, shapes.accumulation_dtype(result.weights))
            self.add_loss(self.scores_regularizer(weights, result.mask))
        heads = self.heads.cached if layout.appends else self.heads
        output = heads.merge(result, x.query)
        if extended.lost is not None:
            output = kv_cache.spoil(output, extended.lost)
        if x.of_query is not None or x.of_key is not None:
            # If a regularizer alone asked for weights, their keys may not be those of the call.
            seen = result if wanted else result.replace(weights=None, mask=None)
            output, result = x.restored(output, seen)
        scores = None
        if wanted:
            scores = self.heads.scores(result.weights, x.query, x.value)
            for listener in listeners:
                listener.heard(self, scores)
            scores = scores if return_attention_scores else None
        if of_output is not None:
            output = masks.carry(output, of_output)
        cache = extended.cache if result.state is None else result.state
        return self._returned(output, scores, result.log_probability, handed, cache)

    def _read(
        self, tensors, explicit, mask, cache, *, key_value=None, return_key_value=False, **given
    ):
        """The checked `Pairs` and the `Layout` of a call with these arguments, or of symbols."""
        layout, how = kv_cache.UNCACHED, given["positions"]
        given["positions"] = None if isinstance(how, str) else how
        if self.traits.refused:
            self._refuse({name: given[name] for name in self.traits.refused})
        if return_key_value or key_value is not None or self.reuse is not None:
            layout = reuse.layout(self, key_value, return_key_value, cache)
        if layout.appends or (cache is not None and self.reuse != "key_value"):
            layout = traits.layout(self, tensors, explicit, cache, layout, **given)
        counts = self._counts_tokens(how, layout.appends) and how is not sequence.COMPACTED
        pairs = given["attention_mask"], given["attention_bias"]
        x = sequence.read(tensors, explicit, mask, *pairs, self.compute_dtype, counts)
        x = x._replace(key_value=key_value, hands_on=return_key_value)
        if not x.one_sequence or x.key is not x.value:
            self._shapes(x.query.shape, x.value.shape, x.key.shape)
        if layout.is_memory:
            of_keys = dict.fromkeys(("value", "key_mask", "seen"), cache["mask"])
            x = x._replace(**of_keys, one_sequence=False)
        if self.score is not None and self.score.needs_length:
            self.score.check_length(x.value.shape[1])
        if x.attention_mask is not None or x.attention_bias is not None:
            self.heads.check_pairs(x)
        if given["positions"] is not None:
            numbers = self._numbers("positions", given["positions"], x)
            x = x._replace(positions=numbers, given=True)
        if given["segment_ids"] is not None:
            x = x._replace(segment_ids=self._numbers("segment_ids", given["segment_ids"], x))
        return x, layout

    def _numbers(self, name, given, x):
        """The argument `positions` or `segment_ids` as a pair of arrays, for query and key."""
        self.heads.check_positions(name, x.query.shape)
        return inputs.pair(name, given, x.query, x.value, x.one_sequence)

    # How tokens are counted

    def _counts_tokens(self, positions, cached=False):
        """Whether a call with these `positions` counts tokens; otherwise it counts places."""
        asked = None if positions is None else sequence.word(positions)
        reason = "a cache has no room for others" if cached else self.traits.tokens_reason
        if reason is None:
            return asked == "tokens" and not self.traits.on_grid
        if asked == "places":
            raise ValueError(
                f"{type(self).__name__} can count real tokens alone: {reason}. "
                "Received: positions='places'"
            )
        return True

    def _counted(self, x, layout):
        """The `Pairs` of a call that counts tokens.

        Rows are compacted, so that an index is a position; where a row has several texts, or
        queries that are no keys, positions are arrays.
        """
        axes = self.heads.axes
        if layout.appends:
            one = x.key_mask is None or x.query.shape[1] == 1
            if one or (layout.is_state and not self.traits.needs_positions):
                return x
            # The cache has the keys, so that none of the call needs a way back.
            return x.compacted(axes)._replace(of_key=None)
        if not self.traits.needs_positions:
            return x
        alike = not x.one_sequence or x.query_mask is x.key_mask
        plain = alike and x.segment_ids is None and not layout.is_memory
        if plain or "positions" in self.traits.refused:
            return x.compacted(axes)
        return x._replace(positions=x.ranked())

    def _returned(self, output, *others):
        """What a call returns: the output alone, or followed by what else was asked for."""
        found: tuple[Any, ...] = (output,)
        for x in others:
            if x is not None:
                found += (x,)
        return found if len(found) > 1 else output

    def split(self, x, role):
        """The heads (B, T, H, K) of the query, the key or the value, as they enter the score."""
        return self.normed(self.heads.split(x, role), role)

    def split_all(self, x, heads=None):
        """The heads of the `Pairs` x, by `heads`, which are those of the layer by default."""
        heads = (heads or self.heads).split_all(x.query, x.key, x.value)
        if self.clip_qkv is not None or self.qk_norm or self.value_norm:
            normed = [self.normed(y, role) for role, y in zip(ROLES, heads, strict=False)]
            heads = [*normed, *heads[len(ROLES) :]]
        return heads if self.reuse is None else reuse.mixed(self, heads, x)

    def extended(self, x, heads=None):
        """The `Extended` of a call without a cache; `heads` of its inputs may be given."""
        query, key, value, *gates = heads or self.split_all(x)
        of_query, of_key = x.positions or (None, None)
        at = Positions.of_heads(query, key, of_query, of_key, x.one_sequence)
        if x.given or not (x.query_mask is x.seen is None):
            at = at.of_padded(x.query_mask, x.seen, x.given)
        found = masks.of_pairs(x.query_mask, x.key_mask, x.attention_mask)
        return kv_cache.Extended(query, key, value, at, found, x.key_mask, gates=gates)

    def normed(self, heads, role):
        """Heads of the query, the key or the value after `clip_qkv` and norms."""
        if self.clip_qkv is not None and heads is not None:
            heads = ops.clip(heads, -self.clip_qkv, self.clip_qkv)
        if role == "value" and self.value_norm and heads is not None:
            ones = ops.ones(heads.shape[-1:], heads.dtype)
            return ops.cast(backend.rms_normalization(heads, ones, 1e-6), heads.dtype)
        if not self.qk_norm or role == "value":
            return heads
        return self._query_norm(heads) if role == "query" else self._key_norm(heads)

    def attend(self, query, key, value, positions, training=None, **given):
        """The `AttentionResult` of heads: the pipeline without the projections.

        Args:
            query, key, value: (B, T, H, K), (B, S, G, K) and (B, S, G, V).
            positions: the `Positions` of queries and keys.
            training: whether weights are dropped.
            **given: what else `slots.problem` takes.
        """
        raise TypeError(f"{type(self).__name__} must implement `attend`.")

    # Decoding: a text in calls of any length

    def make_cache(
        self, batch_size: int | Tensor, length: int, dtype: Dtype | None = None, spare: int = 0
    ) -> Cache:
        """An empty cache, for `layer(x, cache=cache)`.

        Such a call appends the tokens of x, one or several, and each attends to all up to
        itself, even if the pattern includes later ones. So a text may be split into any calls: the
        outputs are those of one causal pass. Tokens masked as padding are left out, at any
        position, and positions count only the others, per row.

        Args:
            batch_size, dtype: number of rows; of keys and values, the compute dtype by default.
            length: the largest number of tokens of a row. If the pattern has a smaller window,
                the cache stores only the window, and rows may be of any length.
            spare: how many more tokens a cache of a window stores, so that `cut_cache` can take
                back as many.

        Returns:
            `{"key": (B, G, C, K), "value": (B, G, C, V), "index": (B,)}`, where C is the number of
            stored tokens and `index` counts the tokens of each row so far. Keys are projected,
            normalized, and rotated by rotary positions. With `spare` entries, "reached" (B,) is
            the largest `index` so far.

        Raises:
            ValueError: a size is no count, or the layer cannot decode; in a call, more than
                `length` tokens are appended to a row. In compiled code, which cannot raise, the
                whole output of that row is NaN, from then on.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> x = keras.random.normal((2, 5, 32))
        >>> expected = layer(x, use_causal_mask=True)
        >>> cache = layer.make_cache(batch_size=2, length=5)
        >>> first, cache = layer(x[:, :3], cache=cache)
        >>> fourth, cache = layer(x[:, 3:4], cache=cache)
        >>> bool(keras.ops.max(keras.ops.abs(fourth - expected[:, 3:4])) < 1e-5)
        True
        """
        traits.check_cache(self, self.traits.no_decoding_reason)
        slots, spare = kv_cache.slots(length, spare, self.traits.window)
        if self.reuse == "key_value":
            return {}
        return kv_cache.make(batch_size, self._arrays(slots), dtype or self.compute_dtype, spare)

    def _arrays(self, slots):
        """The shapes of a cache's arrays of so many entries, by name, without the batch axis."""
        heads, *sizes = self.heads.cached.stored
        given = zip(("key", "value"), sizes, strict=True)
        return {name: (heads, slots, size) for name, size in given if size is not None}

    def cut_cache(self, cache: Cache, length: int | Tensor) -> Cache:
        """The cache of the first tokens of each row, from which another text can go on.

        What follows is as if no more tokens had been read. Nothing is copied but the index.

        Args:
            cache: what `make_cache` or a call gave.
            length: how many tokens to keep, an integer or integers (B,), which may be known only
                when a program runs. A row of fewer tokens stays as it is.

        Raises:
            ValueError: the cache is a state, a sum from which no token can be taken; or it is of a
                window, and another token has taken the place of one that the next query would see.
                As many tokens as `make_cache` was told to `spare` can be taken back, and any number
                while no row has had more tokens than there are entries. In compiled code, which
                cannot raise, the next output of such a row is NaN.
            TypeError: `length` has no integers.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> x = keras.random.normal((2, 5, 32))
        >>> _, cache = layer(x, cache=layer.make_cache(batch_size=2, length=5))
        >>> cache = layer.cut_cache(cache, [2, 3])
        >>> output, cache = layer(x[:, :1], cache=cache)
        >>> keras.ops.convert_to_numpy(cache["index"])
        array([3, 4], dtype=int32)
        """
        layout = kv_cache.layout(cache, self.traits.layouts, self.traits.window)
        return kv_cache.cut(cache, layout, length, self.traits.window)

    def grow_cache(self, cache: Cache, length: int, spare: int = 0) -> Cache:
        """The same cache with entries for at least `length` tokens, as of `make_cache`.

        Caches of a state, and those that store a whole window, stay as they are: rows may be of
        any length.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> cache = layer.make_cache(batch_size=2, length=5)
        >>> layer.grow_cache(cache, 8)["key"].shape
        (2, 4, 8, 8)
        """
        layout = kv_cache.layout(cache, self.traits.layouts, self.traits.window)
        return layout.grown(cache, *kv_cache.slots(length, spare, self.traits.window))

    def repeat_cache(self, cache: Cache, rows: int | Tensor) -> Cache:
        """The cache of one row as that of many, which all begin with its tokens.

        These are stored once, but for the last up to 63, if attention is a softmax over all earlier
        tokens and their number is known: attention over them and over the tokens of a row is
        merged by the sums of exponentials. Each row has its own otherwise.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> x = keras.random.normal((1, 70, 32))
        >>> _, cache = layer(x, cache=layer.make_cache(batch_size=1, length=70))
        >>> cache = layer.grow_cache(layer.repeat_cache(cache, 100), 80)
        >>> cache["shared_key"].shape, cache["key"].shape
        ((1, 4, 64, 8), (100, 4, 16, 8))
        """
        layout = kv_cache.layout(cache, self.traits.layouts, self.traits.window)
        shapes.check_same("Rows", cache=cache["index"].shape[0], needed=1)
        kv_cache.check_rows("rows", rows)
        return layout.repeated(self, cache, rows)

    def cache_context(
        self, value: Tensor, key: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Cache:
        """The keys and values of cross-attention, projected once for all steps of a decoder.

        `layer(x, cache=memory)` is `(layer(x, value, key, key_mask=key_mask), memory)`.

        Args:
            value, key, key_mask: as in a call, including the masks that they carry.

        Returns:
            `{"key": (B, G, S, K), "value": (B, G, S, V), "mask": (B, S)}`.

        Raises:
            ValueError: the layer is not built, or attends over more than one axis.
            TypeError: `value` or `key` is symbolic, as in a functional model.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> x, encoded = keras.random.normal((2, 3, 32)), keras.random.normal((2, 7, 16))
        >>> expected = layer(x, encoded)
        >>> memory = layer.cache_context(encoded)
        >>> output, memory = layer(x[:, :1], cache=memory)
        >>> bool(keras.ops.max(keras.ops.abs(output - expected[:, :1])) < 1e-5)
        True
        """
        if not self.built:
            raise ValueError(
                f"{type(self).__name__} has no weights yet: call it once, or "
                "`layer.build(query_shape, value_shape)`, before `cache_context`."
            )
        if any(isinstance(x, keras.KerasTensor) for x in (value, key, key_mask)):
            raise TypeError(
                "`cache_context` takes arrays, and no symbolic tensors of a functional model: use "
                f"it in the `call` of a custom layer or model. Received: value={value!r}"
            )
        traits.check_cache(self, self.traits.no_cache_reason)
        value, key = (inputs.converted(self, x, self.autocast, {}) for x in (value, key))
        (_, value, key), (_, value_mask, key_mask) = sequence.three_inputs(
            (value, value, key), (None, None, key_mask)
        )
        mask = masks.both(value_mask, key_mask)
        value, key = sequence.without_padding((value, key), (mask, mask))
        mask = ops.ones((1, 1), "bool") if mask is None else mask
        mask = ops.broadcast_to(mask, ops.shape(value)[:2])
        return kv_cache.context(self.split(key, "key"), self.split(value, "value"), mask)

    # Its name in 0.1.0.
    cache_memory = cache_context

    # Symbolic calls: shapes, dtypes and masks

    def _shapes(self, query_shape, value_shape, key_shape):
        """The shapes of query, value and key, after checking that they can be attended over."""
        given = query, value, key = inputs.three_shapes(query_shape, value_shape, key_shape)
        self.heads.check_shapes(*given)
        one = shapes.may_equal(query[1:], value[1:]) and shapes.may_equal(query[1:], key[1:])
        if self.traits.one_sequence and not (one and shapes.may_equal(value[1:], key[1:])):
            raise ValueError(
                f"{type(self).__name__} takes one sequence. Received: query.shape={query}, "
                f"value.shape={value}, key.shape={key}"
            )
        return given

    def _refuse(self, given):
        """Raises if any of these arguments is given."""
        flags = bool, int, np.bool_
        names = [n for n, x in given.items() if (x if isinstance(x, flags) else x is not None)]
        if names:
            raise ValueError(
                f"{type(self).__name__} {self.traits.refusal}. Received: {', '.join(names)}"
            )

    compute_mask = masks.of_first

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, _ = self._shapes(query_shape, value_shape, key_shape)
        return self.heads.output_shape(query_shape, value_shape)

    def compute_output_spec(self, *args, **kwargs):
        given = vars(inputs.arguments(self.call, *args, **kwargs))
        tensors = [given.pop(role) for role in ("query", "value", "key")]
        explicit = [given.pop(f"{role}_mask") for role in ("query", "value", "key")]
        mask, cache, _ = map(given.pop, ("mask", "cache", "training"))
        x, _ = self._read(tensors, explicit, mask, cache, **given)
        handed = reuse.specs(self, x.key, cache) if x.hands_on else None
        query, value, key = x.query.shape, x.value.shape, x.key.shape
        cached = None if cache is None else cache.get("value", cache.get("key"))
        if cached is not None:
            batch, _, length, size = cached.shape
            value = key = (batch, length, size)
        shape = self.compute_output_shape(query, value, key)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        scores = chosen = None
        if given["return_attention_scores"]:
            shape = self.heads.scores_shape(query, value)
            scores = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if self.returns_log_probability and self.normalization.has_log_probability:
            chosen = keras.KerasTensor((query[0], self.num_heads, query[1]), dtype="float32")
        return self._returned(output, scores, chosen, handed, cache and kv_cache.specs(cache))


class OutputProjection(BaseAttention, saved=False):
    """Heads projected from inputs of any axes, and a projection of all heads to the output.

    The arguments are described by `MultiHeadAttention`.
    """

    # The activation of the gate, with `use_gate`.
    gate_activation = "sigmoid"

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        *,
        use_bias: UseBias = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        use_gate: bool = False,
        **kwargs: Any,
    ):
        shapes.check_count("key_dim", key_dim)
        use_bias = shapes.check_flag("use_bias", use_bias, names=("qkv", "qvo"))
        super().__init__(num_heads, key_dim, value_dim, use_bias=bool(use_bias), **kwargs)
        self.use_bias = use_bias
        # A model's summary would print a public `output_shape`, which lacks the batch axis.
        self._output_shape = shapes.check_sizes("output_shape", output_shape, 1)
        self.output_sizes = self._output_shape
        self.attention_axes = shapes.check_sizes("attention_axes", attention_axes)
        self.use_gate = shapes.check_flag("use_gate", use_gate)
        self.heads = EinsumHeads(self)

    output_dense = parts.part("_output_dense", "The layer that projects the heads to the output.")
