"""`Attention`: the whole pipeline, with every slot open. The other layers are presets of it."""

from typing import Any

import keras
from keras import ops

from keras_attention import kernels, normalizations, patterns, positions, regularizers, scores
from keras_attention.core import keras_private, slots
from keras_attention.core.hints import Constraint, Initializer, Regularizer
from keras_attention.layers.base import BaseAttention, QkNorm
from keras_attention.sequences import shapes


class Attention(BaseAttention):
    r"""Attention of queries over keys and values, in one head or several.

    Without `key_dim` the layer has no projections: the score compares the raw inputs (Luong et al.
    2015), and the output is `Σ_s weight[t, s] · value[s]`. With `key_dim`, it is
    `Concat(head_1 … head_h)` of Vaswani et al. 2017, section 3.2.2, where
    `head_i = softmax(Q W_i^Q (K W_i^K)^T / √key_dim) V W_i^V`: there is no output projection
    (`MultiHeadAttention` has one). `docs/heads.md#widths` compares the two.

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
            None. With a cache they are of the tokens appended, in ascending order, and only rotary
            positions without a pattern take them.
        segment_ids: integers that number the texts packed into one row: a query sees only keys of
            its own text. (B, T) for self-attention, or a pair (B, T) and (B, S).
        cache: of `make_cache`, to which the tokens of `query` are appended before each attends
            to all up to itself; or of `cache_context`, whose keys and values replace `value` and
            `key`.
        mask: Keras's name for the mask of a layer's only input, which `TimeDistributed` passes:
            that of `query` in self-attention, or a list of masks for a list of tensors; False
            for none.
        return_key_value: whether to return, before a cache, `{"key": (B, S, G, K), "value":
            (B, S, G, V)}` too, and with a cache more: the `key_value` of a later layer.
        key_value: that of an earlier layer over the same tokens and with the same position, for a
            layer with `reuse`.

    Returns:
        (B, T, num_heads · value_dim), or (B, T, D') without projections. It carries the query's
        mask. A query without any key to attend to has weights, output and gradients of exactly 0.
        With a `cache`, that of the next call comes last: `(output, cache)`.

    Raises:
        ValueError, TypeError: a size, a rate, a slot or a mask is not as described.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 128))
    >>> keras_attention.Attention(8, 16)([x, x, x]).shape
    (2, 5, 128)
    >>> memory = keras.random.normal((2, 7, 128))
    >>> output, scores = keras_attention.Attention()(x, memory, return_attention_scores=True)
    >>> output.shape, scores.shape
    ((2, 5, 128), (2, 1, 5, 7))
    """

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
        if key_dim is None and (num_heads != 1 or value_dim is not None or use_bias):
            raise ValueError(
                "Without `key_dim` there are no projections, so `num_heads` must be 1, `value_dim` "
                "None and `use_bias` False. For heads, pass the features of each as `key_dim`. "
                f"Received: num_heads={num_heads}, value_dim={value_dim}, use_bias={use_bias}"
            )
        super().__init__(
            *(num_heads, key_dim, value_dim, use_bias),
            *(kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer),
            *(activity_regularizer, kernel_constraint, bias_constraint, seed),
            *(num_key_value_heads, qk_norm, clip_qkv),
            **kwargs,
        )
        self.score = scores.get(score)
        self.normalization = normalizations.get(normalization)
        self.pattern = patterns.get(pattern)
        self.position = positions.get(position)
        self.dropout = shapes.check_rate("dropout", dropout)
        self.logit_soft_cap = shapes.check_optional_positive("logit_soft_cap", logit_soft_cap)
        self.use_sink = shapes.check_flag("use_sink", use_sink)
        self.scores_regularizer = regularizers.get(scores_regularizer)
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

    def _build_slots(self, query_heads, key_heads):
        super()._build_slots(query_heads, key_heads)
        if self.use_sink:
            self.sink = self.add_weight(name="sink", shape=(query_heads[2],), initializer="zeros")
        if self.reuse == "value_residual":
            start = keras.initializers.Constant(0.5)
            self.value_scales = self.add_weight((2,), start, name="value_scales")
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

    def attend(self, query, key, value, positions, training=None, **given):
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

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which kernel a call with these arguments runs, and why: see `ops.explain`.

        It makes the call. A layer of several attentions has a line of each.

        >>> import keras, keras_attention
        >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
        >>> why = layer.explain(keras.random.normal((2, 700, 32)), use_causal_mask=True)
        >>> why.split("; ")[2]  # after the kernel, why it is chosen, and its cost
        'mask: pattern Causal()'
        """
        with kernels.explained() as found:
            self(*args, **kwargs)
        return "\n".join(found)

    def _projected(self, position):
        """The heads of a position's table, by its roles; None without a table."""
        with keras_private.uncast_variables():
            table = position.projected_table()
        if table is None:
            return None
        table = ops.cast(table, self.compute_dtype)
        prefix = "position_" if position.own_projections else ""
        return [
            self.normed(self.heads.split_table(table, prefix + role)[None], role)[0]
            for role in position.table_roles
        ]
