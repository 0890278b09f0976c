"""`Attention`: the whole pipeline, with every slot open. The other layers are presets of it."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import keras

from keras_attention import (
    inputs,
    keras_private,
    kernels,
    masks,
    normalizations,
    patterns,
    positions,
    regularizers,
    saving,
    scores,
    shapes,
)
from keras_attention.hints import Cache, Constraint, Initializer, Regularizer, Tensor, Tensors
from keras_attention.layers import norms
from keras_attention.layers.decoding import Decoding
from keras_attention.layers.heads import ROLES, DenseHeads, Heads
from keras_attention.layers.symbolic import SymbolicCall
from keras_attention.layers.uncast_inputs import UncastInputs
from keras_attention.spec import AttentionSpec, Positions

ops = keras.ops

NamedQkNorm = Literal[False, "rms", "layer"]
QK_NORMS = get_args(NamedQkNorm)
UseBias: TypeAlias = bool | Literal["qkv"]
QkNorm: TypeAlias = NamedQkNorm | keras.layers.Layer


@saving.register
class Attention(Decoding, SymbolicCall, UncastInputs):
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
            "additive", "concat", or a `scores.Score`.
        normalization: turns scores into weights: "softmax", "sigmoid", "sparsemax", "hard", or a
            `normalizations.Normalization`.
        pattern: which keys a query may attend to by position: None for all, "causal", or a
            `patterns.Pattern` such as `Causal() & SlidingWindow(128, 0)`.
        position: how the two positions change a score: None, "rotary", "alibi",
            "relative_bias", or a `positions.Position`.
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
        positions: integer positions, for patterns and `position`, if they do not count from 0:
            (T,) or (B, T) for self-attention, or a pair for query and key, either of them None.
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
        self.supports_masking = True
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
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Of the projections, as in Keras's layer. `Layer.activity_regularizer` is of the output.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
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

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        saving.list_inherited_arguments(cls)

    # What presets declare, and set in their constructors

    # A pattern in addition to the slot's.
    preset_pattern: patterns.Pattern | None = None
    # A position before the slot's: it sees heads that the other has not encoded.
    preset_position: Any = None
    # Whether it may return the log-probability of the choices of hard attention.
    returns_log_probability = False
    # Whether it takes one sequence only, whose tokens may be appended to a cache where none sees
    # those after it.
    one_sequence = False

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
        return patterns.every(
            self.pattern, self.preset_pattern, patterns.Causal() if causal else None
        )

    # Building

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = self._shapes(query_shape, value_shape, key_shape)
        self.heads.build(query_shape, value_shape, key_shape)
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
        for slot in (self.score, self.position):
            if slot is not None and not slot.built:
                slot.build(query_heads, key_heads)
        if self.use_sink:
            self.sink = self.add_weight(name="sink", shape=(self.num_heads,), initializer="zeros")
        # A Dropout layer rather than a seed generator, to keep its name in saved files.
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )
        if self.normalization.random:
            # One generator for both: two with one seed would draw the same numbers.
            shared = self._dropout_layer.seed_generator if self.dropout else None
            self._choice_seed = shared or keras.random.SeedGenerator(self.seed)
        if self.preset_position is not None:
            self.preset_position.build(query_heads, key_heads)

    @property
    def query_dense(self) -> keras.Layer:
        """The layer that projects the query, for LoRA, quantization and reading weights."""
        return self._query_dense

    @property
    def key_dense(self) -> keras.Layer:
        """The layer that projects the key."""
        return self._key_dense

    @property
    def value_dense(self) -> keras.Layer:
        """The layer that projects the value."""
        return self._value_dense

    @property
    def query_norm(self) -> keras.Layer:
        """The norm of query heads, with `qk_norm`."""
        return self._query_norm

    @property
    def key_norm(self) -> keras.Layer:
        """The norm of key heads, with `qk_norm`."""
        return self._key_norm

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
        given = inputs.Given(**{k: x for k, x in locals().items() if k != "self"})
        query_mask = inputs.query_mask(query_mask, mask, query, value)
        if cache is not None:
            self.check_cached(**vars(given))
        (query, value, key), (query_mask, value_mask, key_mask) = inputs.three_inputs(
            (query, value, key), (query_mask, value_mask, key_mask)
        )
        key_mask = masks.both(value_mask, key_mask)
        attention_mask = masks.boolean("attention_mask", attention_mask)
        seen = masks.both(key_mask, inputs.masked_for_all(attention_mask, key))
        # As they came: zeros may make two tensors of one sequence.
        sequences = query, value
        query, value, key = inputs.without_padding(
            inputs.floats((query, value, key), self.compute_dtype), (query_mask, seen, seen)
        )
        if cache is not None:
            return self._call_cached(query, query_mask, given)
        query_heads, key_heads, value_heads = self.split_all(query, key, value)
        at = self.heads.pair("positions", positions, *sequences)
        spec = AttentionSpec(
            masks=self.heads.mask(query, value, query_mask, key_mask, attention_mask),
            pattern=self.whole_pattern(use_causal_mask),
            biases=self.heads.bias(attention_bias, query, value),
            positions=Positions.of_heads(query_heads, key_heads, *at),
            segment_ids=self.heads.pair("segment_ids", segment_ids, *sequences),
            return_weights=return_attention_scores,
        )
        encoded = False
        if self.position is not None and self.position.needs_length:
            of_query = self.heads.mask(query, value, query_mask, None, None)
            of_key = self.heads.mask(query, value, None, seen, None)
            at = spec.positions.of_real(  # type: ignore[union-attr]
                of_query[0][:, 0, :, 0] if of_query else None,
                of_key[0][:, 0, 0] if of_key else None,
                given=positions is not None,
            )
            with keras_private.uncast_variables():
                query_heads, key_heads = self.position.encode(query_heads, key_heads, *at)
            encoded = True
        result = self.attend(
            spec, query_heads, key_heads, value_heads, key_mask, training, encoded=encoded
        )
        self._regularize(result)
        output = masks.carry(self.heads.join(result, query), query_mask)
        scores = None
        if return_attention_scores:
            scores = self.heads.scores(result.weights, query, value)
        return self._returned(output, scores, result.log_probability, None)

    def _regularize(self, result):
        """Adds the loss of the weights."""
        if self.scores_regularizer is not None:
            weights = ops.cast(result.weights, shapes.accumulation_dtype(result.weights))
            self.add_loss(self.scores_regularizer(weights, result.mask))

    def _returned(self, output, scores, log_probability, cache):
        """The output, and the scores, log-probability and cache that are part of it, in order."""
        if not self.normalization.has_log_probability:
            log_probability = None
        returned = tuple(x for x in (output, scores, log_probability, cache) if x is not None)
        return returned if len(returned) > 1 else output

    def split(self, x, role):
        """The heads (B, T, H, K) of the query, the key or the value, as they enter the score."""
        return self.normed(self.heads.split(x, role), role)

    def split_all(self, query, key, value):
        """As `split`, of the three."""
        heads = self.heads.split_all(query, key, value)
        return [self.normed(x, role) for x, role in zip(heads, ROLES, strict=True)]

    def normed(self, heads, role):
        """Heads of the query, the key or the value, with `clip_qkv` and `qk_norm`."""
        if self.clip_qkv is not None:
            heads = ops.clip(heads, -self.clip_qkv, self.clip_qkv)
        if not self.qk_norm or role == "value":
            return heads
        return self._query_norm(heads) if role == "query" else self._key_norm(heads)

    def attend(
        self, spec, query, key, value, key_mask=None, training=None, prepared=False, encoded=False
    ):
        """The `AttentionResult` of heads: the pipeline without the projections.

        Args:
            spec: the `AttentionSpec` of the call, which the slots complete.
            query, key, value: (B, T, H, K), (B, S, G, K) and (B, S, G, V).
            key_mask: the padding of the keys, (B, S), which is among the masks.
            training: whether weights are dropped.
            prepared: whether the key is a result of the score's `prepare_key`.
            encoded: whether query and key are results of the position's `encode`.
        """
        rows = self._position_rows()
        # Slots read their weights in the stored dtype, although Keras would cast them on reading
        # if this layer computes in bfloat16 or float16.
        with keras_private.uncast_variables():
            spec = spec.replace(
                logit_soft_cap=self.logit_soft_cap,
                sink=ops.convert_to_tensor(self.sink) if self.use_sink else None,
                # The rate first: JAX may have traced `training`.
                dropout=self.dropout if self.dropout and training else 0.0,
                seed=self._dropout_layer.seed_generator if self.dropout else None,
                return_weights=spec.return_weights or self.scores_regularizer is not None,
            )
            if self.preset_position is not None:
                spec = self.preset_position.into_spec(spec, query, key, key_mask)
            seed = self._choice_seed if self.normalization.random else None
            spec = self.normalization.into_spec(spec, training, seed)
            if self.position is not None:
                if not encoded:
                    at = spec.positions
                    query, key = self.position.encode(query, key, at.query, at.key)
                spec = self.position.into_spec(spec, query, key, key_mask, **rows)
            spec, query, key = self.score.into_spec(spec, query, key, prepared)
            return kernels.run(spec, query, key, value)

    def _position_rows(self):
        """The heads of the position's table as queries and as keys, an argument of `into_spec`."""
        with keras_private.uncast_variables():
            table = None if self.position is None else self.position.projected_table()
        if table is None:
            return {}
        table = ops.cast(table, self.compute_dtype)
        rows = [(self.heads.split_rows(table, role), role) for role in ("query", "key")]
        return {"rows": [self.normed(heads[None], role)[0] for heads, role in rows]}
