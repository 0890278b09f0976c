"""`Attention`: the whole pipeline, with every slot open. The other layers are presets of it."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import keras
import numpy as np
from keras import ops

from keras_attention import (
    kernels,
    normalizations,
    patterns,
    positions,
    regularizers,
    saving,
    scores,
)
from keras_attention.core import keras_private, parts, slots, tap
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
from keras_attention.layers.heads import ROLES, DenseHeads, Heads
from keras_attention.layers.traits import Traits
from keras_attention.sequences import inputs, masks, sequence, shapes
from keras_attention.spec import Positions

NamedQkNorm = Literal[False, "rms", "layer"]
QK_NORMS = get_args(NamedQkNorm)
UseBias: TypeAlias = bool | Literal["qkv"]
QkNorm: TypeAlias = NamedQkNorm | keras.layers.Layer
# The arguments of a call that are neither a tensor with its mask nor a mode.
OPTIONS = (
    *("attention_mask", "return_attention_scores", "use_causal_mask", "attention_bias"),
    *("positions", "segment_ids"),
)


class Attention(saving.ConfigurableLayer):
    r"""Attention of queries over keys and values, in one head or several.

    Without `key_dim` the layer has no projections: the score compares the raw inputs (Luong et al.
    2015), and the output is `Σ_s weight[t, s] · value[s]`. With `key_dim`, it is
    `Concat(head_1 … head_h)` of Vaswani et al. 2017, section 3.2.2, where
    `head_i = softmax(Q W_i^Q (K W_i^K)^T / √key_dim) V W_i^V`: there is no output projection
    (`MultiHeadAttention` has one).

    Args:
        num_heads: number of heads. Must be 1 without `key_dim`.
        key_dim: features of each query and key head, or None for no projections.
        value_dim: features of each value head; defaults to `key_dim`.
        score: how well a key matches a query: "scaled_dot", "dot", "cosine", "general",
            "additive", "concat", "key_only", or a `scores.Score`.
        normalization: turns scores into weights: "softmax", "sigmoid", "sparsemax", "entmax",
            "adaptive_entmax", "hard", or a `normalizations.Normalization`.
        pattern: which keys a query may attend to by position: None for all, "causal", or a
            `patterns.Pattern` such as `Causal() & SlidingWindow(128, 0)`.
        position: how the two positions change a score: None, "rotary", "xpos", "alibi",
            "kerple", "fire", "cope", "relative_bias", "transformer_xl", "disentangled", or a
            `positions.Position`.
        dropout: rate at which weights are dropped in training.
        use_bias: whether the projections have biases.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
            activity_regularizer, kernel_constraint, bias_constraint: of the projections.
        seed: seed of the dropout, and of the choices of hard attention.
        num_key_value_heads: number of key and value heads, each shared by `num_heads /
            num_key_value_heads` query heads (grouped-query attention, Ainslie et al. 2023; with 1,
            multi-query attention, Shazeer 2019). None gives each query head its own.
        qk_norm: whether query and key heads are normalized before they are compared: False, "rms"
            (RMSNorm) or "layer" (LayerNorm without offset; Dehghani et al. 2023), with learned
            scales per feature, or a Keras layer, copied for each. It bounds the scores.
        logit_soft_cap: None, or c to replace scores by `c · tanh(score / c)` (Gemma 2, 2024),
            before any bias.
        use_sink: whether each head has a learned sink: one more score in its softmax, which
            absorbs weight and has no value (as in Agarwal et al. 2025, gpt-oss). Weights
            then sum to less than one.
        scores_regularizer: a loss of the weights: None, "doubly_stochastic", "entropy", or a
            `regularizers.Regularizer`.
        clip_qkv: None, or c to clip query, key and value heads to ±c before anything else
            (MosaicML 2023, MPT; DBRX).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        query: (B, T, D), or a list `[query, value]` or `[query, value, key]`.
        value: (B, S, D'); None attends to `query` itself.
        key: (B, S, D''); defaults to `value`.
        query_mask, value_mask, key_mask: boolean (B, T), (B, S) and (B, S), True = a real token.
            They are combined with the masks that the tensors carry. A masked query has output 0.
        attention_mask: boolean (T, S), (B, T, S) or (B, H, T, S), True = attend.
        return_attention_scores: whether to return `(output, scores)`, scores (B, H, T, S) being
            the weights before dropout.
        training: whether to apply dropout.
        use_causal_mask: whether query t sees only keys up to t.
        attention_bias: added to the scores; broadcasts to (B, H, T, S), or (T, S), or (B, T, S).
        positions: how tokens are counted, for patterns and `position`: "places", by their index,
            which is the default; "tokens", by their rank among the real tokens of their row (of
            their text, with `segment_ids`), so that padding changes nothing, wherever it is; or
            integers, (T,) or (B, T) for self-attention, or a pair for query and key, either of them
            None.
        segment_ids: integers that number the texts packed into one row: a query sees only keys of
            its own text. (B, T) for self-attention, or a pair (B, T) and (B, S).
        cache: of `make_cache`, to which the tokens of `query` are appended before each attends
            to all up to itself; or of `cache_context`, whose keys and values replace `value` and
            `key`.
        mask: Keras's name for the mask of a layer's only input, which `TimeDistributed` passes:
            that of `query` in self-attention, or a list of masks for a list of tensors; False
            for none.

    Returns:
        (B, T, num_heads · value_dim), or (B, T, D') without projections. It carries the query's
        mask. A query without any key to attend to has weights, output and gradients of exactly 0.
        With a `cache`, that of the next call comes last: `(output, cache)`.

    Raises:
        ValueError, TypeError: a size, a rate, a slot or a mask is not as described.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 128))
    >>> keras_attention.Attention(8, 16)([x, x, x]).shape
    (2, 5, 128)
    >>> memory = keras.random.normal((2, 7, 128))
    >>> output, scores = keras_attention.Attention()(x, memory, return_attention_scores=True)
    >>> output.shape, scores.shape
    ((2, 5, 128), (2, 1, 5, 7))
    """

    _masks = (
        "`query_mask` (B, T) and `value_mask` (B, S) for padding, and `attention_mask`, (T, S), "
        "(B, T, S) or (B, H, T, S), for pairs"
    )
    _unrounded = ("attention_bias", "cache")

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: scores.ScoreLike = "scaled_dot",
        normalization: normalizations.NormalizationLike = "softmax",
        pattern: patterns.PatternLike | None = None,
        position: positions.PositionLike | None = None,
        dropout: float = 0.0,
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
        logit_soft_cap: float | None = None,
        use_sink: bool = False,
        scores_regularizer: regularizers.RegularizerLike | None = None,
        clip_qkv: float | None = None,
        **kwargs: Any,
    ):
        num_heads = shapes.check_count("num_heads", num_heads)
        key_dim = shapes.check_count("key_dim", key_dim, optional=True)
        value_dim = shapes.check_count("value_dim", value_dim, optional=True)
        use_bias = shapes.check_flag("use_bias", use_bias)
        if key_dim is None and (num_heads != 1 or value_dim is not None or use_bias):
            raise ValueError(
                "Without `key_dim` there are no projections, so `num_heads` must be 1, `value_dim` "
                "None and `use_bias` False. For heads, pass the features of each as `key_dim`. "
                f"Received: num_heads={num_heads}, value_dim={value_dim}, use_bias={use_bias}"
            )
        num_key_value_heads = shapes.check_count(
            "num_key_value_heads", num_key_value_heads, optional=True
        )
        if num_key_value_heads is not None and num_heads % num_key_value_heads:
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. Received: "
                f"num_key_value_heads={num_key_value_heads}, num_heads={num_heads}"
            )
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.num_key_value_heads = num_key_value_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        self.score = scores.get(score)
        self.normalization = normalizations.get(normalization)
        self.pattern = patterns.get(pattern)
        self.position = positions.get(position)
        self.dropout = shapes.check_rate("dropout", dropout)
        self.use_bias: UseBias = use_bias
        self._keep_options("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._keep_options("bias", bias_initializer, bias_regularizer, bias_constraint)
        # For the projections, as in Keras's layer; `Layer.activity_regularizer` is for the output.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.seed = shapes.check_integer("seed", seed, unsigned=True)
        self.qk_norm = norms.check("qk_norm", qk_norm, QK_NORMS)
        self.logit_soft_cap = shapes.check_number(
            "logit_soft_cap", logit_soft_cap, above=0, optional=True
        )
        self.use_sink = shapes.check_flag("use_sink", use_sink)
        self.scores_regularizer = regularizers.get(scores_regularizer)
        self.clip_qkv = shapes.check_number("clip_qkv", clip_qkv, above=0, optional=True)
        self.heads = Heads(self) if key_dim is None else DenseHeads(self)
        self._check_slots()

    # What presets declare, and set in their constructors

    # A pattern in addition to the slot's.
    preset_pattern: patterns.Pattern | None = None
    # A position before the slot's: it sees heads that the other has not encoded.
    preset_position: Any = None
    # Its traits that do not follow from the slots, beside those of its base classes.
    own_traits: ClassVar[dict[str, Any]] = {}
    # Whether it may return the log-probability of the choices of hard attention.
    returns_log_probability = False

    @functools.cached_property
    def traits(self) -> Traits:
        """What the layer has, needs and refuses, by its slots and heads."""
        return traits.of_slots(self)

    def _check_slots(self):
        """Rejects incompatible slots."""
        if self.position is not None:
            self.position.check_score(self.score)
        if self.use_sink and not self.normalization.takes_sink:
            raise ValueError(
                "A sink takes part in a softmax: `use_sink=True` needs normalization='softmax'. "
                f"Received: normalization={self.normalization!r}"
            )
        if self.normalization.has_log_probability and not self.returns_log_probability:
            raise ValueError(
                "Hard(gradient='reinforce') has no gradient of its own, and needs a layer that "
                "returns the log-probability of its choice: use "
                "`HardAttention(gradient='reinforce')`. Received it as `normalization` of "
                f"{type(self).__name__}"
            )

    def whole_pattern(self, causal=False):
        """The pattern slot combined with all other patterns, or None."""
        found = [self.pattern, self.preset_pattern]
        if causal and not any(isinstance(pattern, patterns.Causal) for pattern in found):
            found.append(patterns.Causal())
        return patterns.every(*found)

    # Building

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = self._shapes(query_shape, value_shape, key_shape)
        for role, dense in self.heads.build(query_shape, value_shape, key_shape).items():
            setattr(self, f"_{role}_dense", dense)
        query_heads = self.heads.shape("query", query_shape)
        key_heads = self.heads.shape("key", key_shape)
        if self.qk_norm:
            for role, shape in (("query", query_heads), ("key", key_heads)):
                norm = norms.make(
                    self.qk_norm, f"{role}_norm", shape, self.dtype_policy, center=False
                )
                setattr(self, f"_{role}_norm", norm)
        if self.position is not None:
            self.position.build_inputs(query_shape, key_shape)
            self.position.build_values(self.heads.shape("value", value_shape))
        for slot in (self.score, self.normalization, self.position):
            if slot is not None and not slot.built:
                slot.build(query_heads, key_heads)
        if self.use_sink:
            self.sink = self.add_weight(name="sink", shape=(query_heads[2],), initializer="zeros")
        # A Dropout layer rather than a seed generator, to keep its name in saved files.
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )
        if self.normalization.random:
            # One generator for both: two with one seed would draw the same numbers.
            shared = self._dropout_layer.seed_generator if self.dropout else None
            self._choice_seed = shared or keras.random.SeedGenerator(self.seed)
        if self.preset_position is not None:
            for name, weight in self.preset_position.weights(query_heads).items():
                setattr(self, name, weight)
        # What follows from the arguments, for all calls.
        self._pattern, self._causal_pattern = self.whole_pattern(), self.whole_pattern(causal=True)

    query_dense = parts.part(
        "_query_dense",
        "The layer that projects the query: for LoRA, quantization and reading weights.",
    )
    key_dense = parts.part("_key_dense", "The layer that projects the key.")
    value_dense = parts.part("_value_dense", "The layer that projects the value.")
    query_norm = parts.part("_query_norm", "The norm of query heads, with `qk_norm`.")
    key_norm = parts.part("_key_norm", "The norm of key heads, with `qk_norm`.")

    # Computing: project → score (+ position) → mask → normalize → combine → project

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
    ) -> Tensors:
        x, layout = self._read(
            *((query, value, key), (query_mask, value_mask, key_mask), mask, cache),
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
            attention_bias=attention_bias,
            positions=positions,
            segment_ids=segment_ids,
        )
        if self.heads.axes is not None or attention_mask is not None or attention_bias is not None:
            x = self.heads.restricted(x)
        of_output = x.query_mask
        if x.counts_tokens:
            x = self._counted(x, layout)

        extended = layout.extend(self, cache, x) if layout.arrays else self.extended(x)
        more = {"gates": extended.gates} if extended.gates else {}
        if layout.is_state:
            more["state"] = extended.cache
        listeners = tap.of(self) if tap.state.listeners and self.traits.has_weights else []
        if listeners:
            more["multiplier"] = self.heads.of_attentions(x.factor(listeners, self))
        wanted = return_attention_scores or bool(listeners)
        result = self.attend(
            *(extended.query, extended.key, extended.value, extended.positions),
            key_mask=extended.key_mask,
            training=training,
            encoded=extended.encoded,
            masks=extended.masks,
            pattern=self._causal_pattern if layout.appends or use_causal_mask else self._pattern,
            biases=() if x.attention_bias is None else (x.attention_bias,),
            segment_ids=x.segment_ids,
            return_weights=wanted,
            **more,
        )
        if self.scores_regularizer is not None and not layout.appends:
            weights = ops.cast(result.weights, shapes.accumulation_dtype(result.weights))
            self.add_loss(self.scores_regularizer(weights, result.mask))
        heads = self.heads.cached if layout.appends else self.heads
        output = heads.join(result, x.query)
        if extended.lost is not None:
            output = kv_cache.spoil(output, extended.lost)
        if x.of_query is not None or x.of_key is not None:
            # Weights that a regularizer alone asked for may be of other keys than the call's.
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
        return self._returned(output, scores, result.log_probability, cache)

    def _read(self, tensors, explicit, mask, cache, **given):
        """The checked `Pairs` and the `Layout` of a call, of arrays or symbols.

        Args:
            tensors, explicit, mask: as in `sequence.read`.
            cache: of the call, or None.
            **given: the other arguments but `training`.
        """
        layout, how = kv_cache.UNCACHED, given["positions"]
        given["positions"] = None if isinstance(how, str) else how
        if self.traits.refused:
            self._refuse({name: given[name] for name in self.traits.refused})
        if cache is not None:
            layout = traits.layout(self, tensors, explicit, cache, **given)
        counts = self._counts_tokens(how, layout.appends) and how is not sequence.COMPACTED
        pairs = given["attention_mask"], given["attention_bias"]
        x = sequence.read(tensors, explicit, mask, *pairs, self.compute_dtype, counts)
        if not x.one_sequence or x.key is not x.value:
            self._shapes(x.query.shape, x.value.shape, x.key.shape)
        if layout.is_memory:
            of_keys = dict.fromkeys(("value", "key_mask", "seen"), cache["mask"])
            x = x._replace(**of_keys, one_sequence=False)
        if self.score.needs_length:
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
        """`positions` or `segment_ids` for query and key, of the `Pairs` of a call."""
        self.heads.check_positions(name, x.query.shape)
        return inputs.pair(name, given, x.query, x.value, x.one_sequence)

    # How tokens are counted

    def _counts_tokens(self, positions, cached=False):
        """Whether a call counts tokens, and not places, by its `positions`."""
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
            # The keys of the call are those of the cache.
            return x.compacted(axes)._replace(of_key=None)
        if not self.traits.needs_positions:
            return x
        alike = not x.one_sequence or x.query_mask is x.key_mask
        plain = alike and x.segment_ids is None and not layout.is_memory
        if plain or "positions" in self.traits.refused:
            return x.compacted(axes)
        return x._replace(positions=x.ranked())

    def _returned(self, output, scores, log_probability, cache):
        """The output, and the scores, log-probability and cache that are part of it, in order."""
        found = [output]
        if scores is not None:
            found.append(scores)
        if self.normalization.has_log_probability and log_probability is not None:
            found.append(log_probability)
        if cache is not None:
            found.append(cache)
        return output if len(found) == 1 else tuple(found)

    def split(self, x, role):
        """The heads (B, T, H, K) of the query, the key or the value, as they enter the score."""
        return self.normed(self.heads.split(x, role), role)

    def split_all(self, query, key, value, heads=None):
        """As `split`, of the three; `heads` are those of a cache, or None for the layer's."""
        heads = (heads or self.heads).split_all(query, key, value)
        if self.clip_qkv is None and not self.qk_norm:
            return heads
        return [self.normed(x, role) for x, role in zip(heads, ROLES, strict=True)]

    def extended(self, x, heads=None):
        """The `Extended` of a call without a cache; `heads` are those of `Pairs`, or None."""
        query, key, value, *gates = heads or self.split_all(x.query, x.key, x.value)
        of_query, of_key = x.positions or (None, None)
        at = Positions.of_heads(query, key, of_query, of_key, x.one_sequence)
        if x.given or not (x.query_mask is x.seen is None):
            at = at.of_padded(x.query_mask, x.seen, x.given)
        found = masks.of_pairs(x.query_mask, x.key_mask, x.attention_mask)
        return kv_cache.Extended(query, key, value, at, found, x.key_mask, gates=gates)

    def normed(self, heads, role):
        """Heads of the query, the key or the value, with `clip_qkv` and `qk_norm`."""
        if self.clip_qkv is not None:
            heads = ops.clip(heads, -self.clip_qkv, self.clip_qkv)
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
        value = self.heads.values(value)
        if self.position is not None and self.position.has_query_bias:
            given["projected"] = self._projected(self.position)
        if self.scores_regularizer is not None:
            given["return_weights"] = True
        if self.dropout:
            given["seed"] = self._dropout_layer.seed_generator
            # JAX may have traced `training`.
            given["dropout"] = self.dropout if training else 0.0
        if self.normalization.random:
            given["choice_seed"] = self._choice_seed
        # Slots read their weights in the stored dtype, although Keras would cast them on reading
        # if this layer computes in bfloat16 or float16.
        with keras_private.uncast_variables():
            if self.use_sink:
                given["sink"] = ops.convert_to_tensor(self.sink)
            found = slots.problem(
                *(self, query, key, value, positions),
                training=training,
                logit_soft_cap=self.logit_soft_cap,
                **given,
            )
            return kernels.run(*found)

    def _projected(self, position):
        """The heads of a position's table, as queries and as keys; None without a table."""
        with keras_private.uncast_variables():
            table = position.projected_table()
        if table is None:
            return None
        table = ops.cast(table, self.compute_dtype)
        return [
            self.normed(self.heads.split_table(table, role)[None], role)[0]
            for role in ("query", "key")
        ]

    # Decoding: a text in calls of any length

    def make_cache(
        self, batch_size: int | Tensor, length: int, dtype: Dtype | None = None
    ) -> Cache:
        """An empty cache, for `layer(x, cache=cache)`.

        Such a call appends the tokens of x, one or several, and each attends to all up to
        itself, even if the pattern includes later ones. So a text may be split into any calls: the
        outputs are those of one causal pass. Tokens masked as padding are left out, at any
        position, and positions count only the others, per row.

        Args:
            batch_size: number of rows.
            length: the largest number of tokens of a row. If the pattern has a smaller window,
                the cache stores only the window, and rows may be of any length.
            dtype: of keys and values; the layer's compute dtype by default.

        Returns:
            `{"key": (B, G, C, K), "value": (B, G, C, V), "index": (B,)}`, where C is the number of
            stored tokens and `index` counts the tokens of each row so far. Keys are projected,
            normalized, and rotated by rotary positions.

        Raises:
            ValueError: a size is no count, or the layer cannot decode. A call raises
                if more than `length` tokens are appended to a row. In compiled code, which
                cannot raise, the whole output of that row is NaN, from then on.

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
        if isinstance(batch_size, (bool, int, float)):
            shapes.check_count("batch_size", batch_size, minimum=0)
        shapes.check_count("length", length)
        window = self.traits.window
        heads, key_dim, value_dim = self.heads.cached.stored
        return kv_cache.make(
            batch_size,
            length if window is None else min(length, window),
            *(heads, key_dim, value_dim),
            dtype or self.compute_dtype,
        )

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

    # Symbolically: shapes, dtypes and masks, checked

    def _shapes(self, query_shape, value_shape, key_shape):
        """The shapes of query, value and key, checked."""
        given = inputs.three_shapes(query_shape, value_shape, key_shape)
        self.heads.check_shapes(*given)
        if self.traits.one_sequence:
            self._check_one_sequence(*given)
        return given

    def _check_one_sequence(self, query_shape, value_shape, key_shape):
        """Raises unless the shapes are of one sequence, as far as sizes are known."""
        sizes = [shape[1:] for shape in (query_shape, value_shape, key_shape)]
        known = [{n for n in axis if isinstance(n, int)} for axis in zip(*sizes, strict=False)]
        if len(set(map(len, sizes))) > 1 or max(map(len, known)) > 1:
            raise ValueError(
                f"{type(self).__name__} takes one sequence. Received: query.shape={query_shape}, "
                f"value.shape={value_shape}, key.shape={key_shape}"
            )

    def _refuse(self, given):
        """Raises if any of these arguments is given."""
        flags = bool, int, np.bool_
        names = [n for n, x in given.items() if (x if isinstance(x, flags) else x is not None)]
        if names:
            raise ValueError(
                f"{type(self).__name__} {self.traits.refusal}. Received: {', '.join(names)}"
            )

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, _ = self._shapes(query_shape, value_shape, key_shape)
        return self.heads.output_shape(query_shape, value_shape)

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        tensors = given.query, given.value, given.key
        explicit = given.query_mask, given.value_mask, given.key_mask
        options = {name: getattr(given, name) for name in OPTIONS}
        x, _ = self._read(tensors, explicit, given.mask, given.cache, **options)
        query, value, key, cache = x.query, x.value, x.key, given.cache
        cached = None if cache is None else cache.get("value", cache.get("key"))
        if cached is not None:
            batch, _, length, size = cached.shape
            value = key = keras.KerasTensor((batch, length, size), cached.dtype)
        shape = self.compute_output_shape(query.shape, value.shape, key.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        scores = None
        if given.return_attention_scores:
            shape = self.heads.scores_shape(query.shape, value.shape)
            scores = keras.KerasTensor(shape, dtype=self.compute_dtype)
        shape = (query.shape[0], self.num_heads, query.shape[1])
        chosen = keras.KerasTensor(shape, dtype="float32")
        return self._returned(
            output, scores, chosen, None if cache is None else kv_cache.specs(cache)
        )
