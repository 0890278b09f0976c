"""`Attention`: the whole pipeline, with every slot open. The other layers are presets of it."""

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
from keras_attention.layers import cache as caches
from keras_attention.layers import projections
from keras_attention.layers.decoding import Decoding
from keras_attention.layers.exact_inputs import ExactInputs
from keras_attention.spec import AttentionSpec, Positions

ops = keras.ops

QK_NORMS = (False, "rms", "layer")


@saving.register
class Attention(Decoding, ExactInputs):
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
        score: how well a key answers a query: "scaled_dot", "dot", "cosine", "general",
            "additive", "concat", or a `scores.Score`.
        normalization: how scores become weights: "softmax", "sigmoid", "sparsemax", "hard", or a
            `normalizations.Normalization`.
        pattern: which keys a query may attend to by position: None for all, "causal", or a
            `patterns.Pattern` such as `Causal() & SlidingWindow(128, 0)`.
        position: what a score owes to the two positions: None, "rotary", "alibi",
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
            scales of the features. It bounds the scores.
        logit_soft_cap: None, or c to replace scores by `c · tanh(score / c)` (Gemma 2, 2024),
            before any bias.
        use_sink: whether each head has a learned sink: one more score in its softmax, which takes
            its share of the weight and gives nothing (as in Agarwal et al. 2025, gpt-oss). Weights
            then sum to less than one.
        scores_regularizer: a loss of the weights: None, "doubly_stochastic", "entropy", or a
            `regularizers.Regularizer`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        query: (B, T, D), or a list `[query, value]` or `[query, value, key]`.
        value: (B, S, D'); None attends to `query` itself.
        key: (B, S, D''); defaults to `value`.
        query_mask, value_mask, key_mask: boolean (B, T), (B, S) and (B, S), True = a real token.
            They count together with the masks that the tensors carry. A masked query has output 0.
        attention_mask: boolean (T, S), (B, T, S) or (B, H, T, S), True = attend.
        return_attention_scores: whether to return `(output, scores)`, scores (B, H, T, S) being
            the weights before dropout.
        training: whether to drop weights.
        use_causal_mask: whether query t sees only keys up to t.
        attention_bias: added to the scores; broadcasts to (B, H, T, S), or (T, S), or (B, T, S).
        positions: integer positions, for patterns and `position`, where they do not count from 0:
            (T,) or (B, T) for self-attention, or a pair for query and key, either of them None.
        segment_ids: integers that number the texts packed into one row: a query sees only keys of
            its own text. (B, T) for self-attention, or a pair (B, T) and (B, S).
        cache: of `make_cache`, which the tokens of `query` are appended to before they attend, each
            to all up to itself; or of `cache_context`, whose keys and values stand for `value` and
            `key`.
        mask: what Keras calls the mask of a layer's only input, and `TimeDistributed` passes: that
            of `query` where it attends to itself, or a list of masks for a list of tensors; False
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
        num_heads=1,
        key_dim=None,
        value_dim=None,
        score="scaled_dot",
        normalization="softmax",
        pattern=None,
        position=None,
        dropout=0.0,
        use_bias=False,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        seed=None,
        num_key_value_heads=None,
        qk_norm=False,
        logit_soft_cap=None,
        use_sink=False,
        scores_regularizer=None,
        **kwargs,
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
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Of the projections, as in Keras's layer. `Layer.activity_regularizer` is of the output.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = shapes.check_integer("seed", seed)
        self.qk_norm = shapes.check_choice("qk_norm", qk_norm, QK_NORMS)
        self.logit_soft_cap = shapes.check_number(
            "logit_soft_cap", logit_soft_cap, above=0, optional=True
        )
        self.use_sink = shapes.check_flag("use_sink", use_sink)
        self.scores_regularizer = regularizers.get(scores_regularizer)
        self._check_slots()

    def _check_slots(self):
        """Refuses slots that make no sense together."""
        self._check_position_and_sink()
        if getattr(self.normalization, "gradient", None) == "reinforce":
            raise ValueError(
                "Hard(gradient='reinforce') has no gradient of its own, and needs a layer that "
                "returns the log-probability of its choice: use "
                "`HardAttention(gradient='reinforce')`. Received it as `normalization` of "
                f"{type(self).__name__}"
            )

    def _check_position_and_sink(self):
        if self.position is not None:
            self.position.check_score(self.score)
        if self.use_sink and not isinstance(self.normalization, normalizations.Softmax):
            raise ValueError(
                "A sink takes part in a softmax: `use_sink=True` needs normalization='softmax'. "
                f"Received: normalization={self.normalization!r}"
            )

    # Building

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = inputs.three_shapes(
            query_shape, value_shape, key_shape
        )
        self._check_shapes(query_shape, value_shape, key_shape)
        self._features = {
            "query": query_shape[-1],
            "value": value_shape[-1],
            "key": key_shape[-1],
        }
        self._build_projections(query_shape, value_shape, key_shape)
        query_heads = self._heads_shape(query_shape, self.num_heads, self.key_dim)
        key_heads = self._heads_shape(key_shape, self._key_value_heads, self.key_dim)
        if self.qk_norm:
            self._query_norm = self._norm("query_norm", query_heads)
            self._key_norm = self._norm("key_norm", key_heads)
        if self.position is not None:
            value_heads = self._heads_shape(value_shape, self._key_value_heads, self.value_dim)
            self.position.expect_values(value_heads)
        for slot in (self.score, self.position):
            if slot is not None and not slot.built:
                slot.build(query_heads, key_heads)
        if self.use_sink:
            self.sink = self.add_weight(name="sink", shape=(self.num_heads,), initializer="zeros")
        # A Dropout layer rather than a seed generator, for the sake of its name in saved files.
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )
        if self.normalization.random:
            # One generator for both: two of one seed would drop by the numbers that chose.
            shared = self._dropout_layer.seed_generator if self.dropout else None
            self._choice_seed = shared or keras.random.SeedGenerator(self.seed)

    def _check_shapes(self, query_shape, value_shape, key_shape):
        named = {"query": query_shape, "value": value_shape, "key": key_shape}
        for name, shape in named.items():
            if len(shape) != 3:
                raise ValueError(
                    f"`{name}` must have 3 axes, (batch, positions, features). "
                    f"Received: {name}.shape={tuple(shape)}"
                )
        shapes.check_lengths(value_shape, key_shape)

    def _build_projections(self, query_shape, value_shape, key_shape):
        if self.key_dim is None:
            return
        self._query_dense = self._projection("query", query_shape, self.key_dim)
        self._key_dense = self._projection("key", key_shape, self.key_dim)
        self._value_dense = self._projection("value", value_shape, self.value_dim)

    def _projection(self, name, shape, size):
        heads = self.num_heads if name == "query" else self._key_value_heads
        shapes.check_memory(name, (shape[-1], heads, size))
        dense = keras.layers.Dense(
            heads * size, use_bias=self.use_bias, name=name, **self._sublayer_arguments()
        )
        dense.build(shape)
        return dense

    @property
    def _key_value_heads(self):
        return self.num_key_value_heads or self.num_heads

    def _norm(self, name, shape):
        if self.qk_norm == "rms":
            norm = keras.layers.RMSNormalization(name=name, dtype=self.dtype_policy)
        else:
            norm = keras.layers.LayerNormalization(center=False, name=name, dtype=self.dtype_policy)
        # Keras's RMSNormalization would warn that it drops the mask that was read already.
        norm.supports_masking = True
        norm.build(shape)
        return norm

    def _sublayer_arguments(self):
        """What every projection is made with."""
        return {
            "kernel_initializer": saving.clone_initializer(self.kernel_initializer),
            "bias_initializer": saving.clone_initializer(self.bias_initializer),
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
            "activity_regularizer": self._activity_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "bias_constraint": self.bias_constraint,
            "dtype": self.dtype_policy,
        }

    def _heads_shape(self, shape, heads, size):
        size = shape[-1] if size is None else size
        return (shape[0], shape[1], heads, size)

    @property
    def query_dense(self):
        """The layer that projects the query, for LoRA, quantization and reading weights."""
        return self._query_dense

    @property
    def key_dense(self):
        """The layer that projects the key."""
        return self._key_dense

    @property
    def value_dense(self):
        """The layer that projects the value."""
        return self._value_dense

    # Computing: project → score (+ position) → mask → normalize → combine → project

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        attention_bias=None,
        positions=None,
        segment_ids=None,
        cache=None,
        mask=False,  # Keras would fill in None, and add what computes it to the graph of a model.
    ):
        query_mask = inputs.query_mask(query_mask, mask, query, value)
        if cache is not None:
            self._check_cached(
                query,
                cache,
                return_attention_scores,
                value=value,
                key=key,
                value_mask=value_mask,
                key_mask=key_mask,
                attention_mask=attention_mask,
                attention_bias=attention_bias,
                positions=positions,
                segment_ids=segment_ids,
            )
        (query, value, key), (query_mask, value_mask, key_mask) = inputs.three_inputs(
            (query, value, key), (query_mask, value_mask, key_mask)
        )
        key_mask = masks.both(value_mask, key_mask)
        query, value, key = inputs.without_padding(
            inputs.floats((query, value, key), self.compute_dtype),
            (query_mask, key_mask, key_mask),
        )
        if cache is None:
            heads = self._project(query, value, key)
        elif caches.is_memory(cache):
            key_mask = cache["mask"]
            value, key = caches.read(cache, self.compute_dtype)
            heads = self._project_query(query), value, key
        else:
            return self._append(query, query_mask, cache, return_attention_scores, training)
        attention_mask = masks.boolean("attention_mask", attention_mask)
        mask = self._mask(query, value, query_mask, key_mask, attention_mask)
        attended = self._attend(
            *heads,
            mask=mask,
            key_mask=key_mask,
            pattern=self._whole_pattern(use_causal_mask),
            bias=self._bias(attention_bias, query, value),
            positions=self._pair("positions", positions, query, value),
            segments=self._pair("segment_ids", segment_ids, query, value),
            return_scores=return_attention_scores or self.scores_regularizer is not None,
            training=training,
        )
        if self.scores_regularizer is not None:
            weights = ops.cast(attended.weights, shapes.accumulation_dtype(attended.weights))
            self.add_loss(self.scores_regularizer(weights, attended.mask))
        output = masks.carry(self._combine(attended, query), query_mask)
        scores = None
        if return_attention_scores:
            scores = self._unfold_scores(attended.weights, query, value)
        return self._returned(output, scores, attended.log_probability, cache)

    def _returned(self, output, scores, log_probability, cache=None):
        """What `call` returns; `scores` and `cache` are None unless they are part of it."""
        returned = [part for part in (output, scores, cache) if part is not None]
        return tuple(returned) if len(returned) > 1 else output

    def _project(self, query, value, key):
        """The heads: query (B, T, H, K), value (B, S, G, V) and key (B, S, G, K)."""
        given = {"query": query, "value": value, "key": key}
        self._check_features(**given)
        if not self._project_together(query, value, key):
            heads = {role: self._heads(x, role) for role, x in given.items()}
        else:
            heads = {}
            for role, x in given.items():
                if role not in heads:
                    roles = [other for other, y in given.items() if y is x]
                    heads |= zip(roles, self._heads_together(x, roles), strict=True)
        if self.qk_norm:
            heads["query"] = self._query_norm(heads["query"])
            heads["key"] = self._key_norm(heads["key"])
        return heads["query"], heads["value"], heads["key"]

    def _project_together(self, query, value, key):
        """Whether projections of one sequence are to be one product."""
        if self.key_dim is None or (query is not key and key is not value):
            return False
        # Laying the weights of all side by side is not worth it for a single token.
        denses = (self._query_dense, self._key_dense, self._value_dense)
        return key.shape[1] != 1 and projections.plain(self, *denses)

    def _heads_together(self, x, roles):
        sizes = {
            "query": (self.num_heads, self.key_dim),
            "key": (self._key_value_heads, self.key_dim),
            "value": (self._key_value_heads, self.value_dim),
        }
        denses = [getattr(self, f"_{role}_dense") for role in roles]
        return projections.to_heads(x, denses, [sizes[role] for role in roles])

    def _check_features(self, **given):
        """Raises where the layer was built for another number of features."""
        for name, x in given.items():
            if self.key_dim is not None and x.shape[-1] not in (None, self._features[name]):
                raise ValueError(
                    f"`{name}` must have {self._features[name]} features, as when the layer was "
                    f"built. Received: {name}.shape={tuple(x.shape)} (the order of inputs is "
                    "query, value, key)"
                )

    def _project_query(self, query):
        self._check_features(query=query)
        heads = self._heads(query, "query")
        return self._query_norm(heads) if self.qk_norm else heads

    def _project_key(self, key):
        heads = self._heads(key, "key")
        return self._key_norm(heads) if self.qk_norm else heads

    def _project_value(self, value):
        return self._heads(value, "value")

    def _heads(self, x, role):
        """The heads of the query, the key or the value, before any norm."""
        if self.key_dim is None:
            return ops.expand_dims(x, 2)
        return self._split(getattr(self, f"_{role}_dense")(x), role)

    def _split(self, projected, role):
        batch, length = ops.shape(projected)[:2]
        heads = self.num_heads if role == "query" else self._key_value_heads
        return ops.reshape(projected, (batch, length, heads, projected.shape[-1] // heads))

    def _pair(self, name, given, query, value):
        return inputs.pair(name, given, query, value)

    def _bias(self, bias, query, value):
        """`attention_bias` with four axes."""
        if bias is None:
            return None
        bias = ops.convert_to_tensor(bias)
        inputs.check_bias("attention_bias", bias)
        return inputs.four_axes("attention_bias", bias)

    def _mask(self, query, value, query_mask, key_mask, attention_mask):
        """Masks that broadcast to (B, H, T, S). Apart, for together they would be (B, 1, T, S)."""
        found = []
        if query_mask is not None:
            found.append(ops.expand_dims(query_mask, (1, 3)))
        if key_mask is not None:
            found.append(ops.expand_dims(key_mask, (1, 2)))
        if attention_mask is not None:
            inputs.check_not_padding(attention_mask, query)
            found.append(inputs.four_axes("attention_mask", attention_mask))
        return found

    def _attend(
        self,
        query,
        value,
        key,
        *,
        mask=(),
        key_mask=None,
        pattern=None,
        bias=None,
        positions=(None, None),
        segments=None,
        return_scores=False,
        training=None,
        key_is_prepared=False,
        encoded=False,
    ):
        """From heads to heads, by the kernel: all slots of the pipeline but the projections."""
        # Slots read their weights as they are stored, also where Keras would cast them on reading
        # because this layer computes in bfloat16 or float16.
        with keras_private.uncast_variables():
            spec = AttentionSpec(
                logit_soft_cap=self.logit_soft_cap,
                biases=() if bias is None else (bias,),
                masks=tuple(mask),
                pattern=pattern,
                segment_ids=segments,
                positions=Positions.of(ops.shape(query)[1], ops.shape(key)[1], *positions),
                sink=ops.convert_to_tensor(self.sink) if self.use_sink else None,
                # The rate first: JAX may have traced `training`.
                dropout=self.dropout if self.dropout and training else 0.0,
                seed=self._dropout_layer.seed_generator if self.dropout else None,
                return_weights=return_scores,
            )
            spec = self._specified(spec, query, value, key_mask)
            seed = self._choice_seed if self.normalization.random else None
            spec = self.normalization.into_spec(spec, training, seed)
            if self.position is not None:
                spec = self.position.into_spec(spec, self.num_heads)
                if not encoded:
                    at = spec.positions
                    query, key = self.position.encode(query, key, at.query, at.key)
            spec, query, key = self.score.into_spec(spec, query, key, key_is_prepared)
            return kernels.run(spec, query, key, value)

    def _specified(self, spec, query, value, key_mask):
        """The last word of a preset on the `AttentionSpec`; `query` is as it was projected."""
        return spec

    def _whole_pattern(self, use_causal_mask):
        """The pattern slot and what the call adds to it."""
        return patterns.every(self.pattern, patterns.Causal() if use_causal_mask else None)

    def _combine(self, attended, query):
        """The layer's output: heads (B, T, H, V) side by side."""
        heads = attended.output
        batch, length = ops.shape(heads)[:2]
        return ops.reshape(heads, (batch, length, self.num_heads * heads.shape[-1]))

    def _unfold_scores(self, scores, query, value):
        return scores

    # Shapes and masks, symbolically

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = inputs.three_shapes(
            query_shape, value_shape, key_shape
        )
        self._check_shapes(query_shape, value_shape, key_shape)
        size = value_shape[-1] if self.key_dim is None else self.num_heads * self.value_dim
        return (*query_shape[:-1], size)

    def _scores_shape(self, query_shape, value_shape):
        return (query_shape[0], self.num_heads, query_shape[1], value_shape[1])

    def compute_output_spec(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        attention_bias=None,
        positions=None,
        segment_ids=None,
        cache=None,
        mask=False,
    ):
        inputs.check_one_sequence(mask, query, value)
        for name, given in (
            ("query_mask", query_mask),
            ("value_mask", value_mask),
            ("key_mask", key_mask),
            ("attention_mask", attention_mask),
            ("mask", None if mask is False else mask),
        ):
            if not isinstance(given, (list, tuple)):
                masks.boolean(name, given)
        if cache is not None:
            self._check_cached(
                query,
                cache,
                return_attention_scores,
                value=value,
                key=key,
                value_mask=value_mask,
                key_mask=key_mask,
                attention_mask=attention_mask,
                attention_bias=attention_bias,
                positions=positions,
                segment_ids=segment_ids,
            )
        (query, value, key), _ = inputs.three_inputs((query, value, key), (None, None, None))
        if cache is not None:
            held = cache["value"]
            batch, _, length, size = held.shape
            value = key = keras.KerasTensor((batch, length, size), held.dtype)
        shape = self.compute_output_shape(query.shape, value.shape, key.shape)
        self._pair("positions", positions, query, value)
        self._pair("segment_ids", segment_ids, query, value)
        if attention_bias is not None and len(query.shape) == 3:
            inputs.check_pairs("attention_bias", attention_bias)
            inputs.check_bias("attention_bias", attention_bias)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        scores = None
        if return_attention_scores:
            shape = self._scores_shape(query.shape, value.shape)
            scores = keras.KerasTensor(shape, dtype=self.compute_dtype)
        shape = (query.shape[0], self.num_heads, query.shape[1])
        chosen = keras.KerasTensor(shape, dtype="float32")
        return self._returned(
            output, scores, chosen, None if cache is None else caches.specs(cache)
        )
