"""`Attention`: the whole pipeline, with every slot open. The other layers are presets of it."""

import keras
from keras.src import backend

from keras_attention import (
    kernels,
    masks,
    normalizations,
    patterns,
    positions,
    saving,
    scores,
    shapes,
)

ops = keras.ops


@saving.register
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
        score: how well a key answers a query: "scaled_dot", "dot", "cosine", "general", or a
            `scores.Score`.
        normalization: how scores become weights: "softmax", "sigmoid", or a
            `normalizations.Normalization`.
        pattern: which keys a query may attend to by position: None for all, "causal", or a
            `patterns.Pattern` such as `Causal() & SlidingWindow(128, 0)`.
        position: what a score owes to the two positions: None, or a `positions.Position`.
        dropout: rate at which weights are dropped in training.
        use_bias: whether the projections have biases.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
            activity_regularizer, kernel_constraint, bias_constraint: of the projections.
        seed: seed of the dropout.
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

    Returns:
        (B, T, num_heads · value_dim), or (B, T, D') without projections. It carries the query's
        mask. A query without any key to attend to has weights, output and gradients of exactly 0.

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
        **kwargs,
    ):
        shapes.check_count("num_heads", num_heads)
        if key_dim is not None:
            shapes.check_count("key_dim", key_dim)
        if value_dim is not None:
            shapes.check_count("value_dim", value_dim)
        if key_dim is None and (num_heads != 1 or value_dim is not None or use_bias):
            raise ValueError(
                "Without `key_dim` there are no projections, so `num_heads` must be 1, `value_dim` "
                f"None and `use_bias` False. Received: num_heads={num_heads}, "
                f"value_dim={value_dim}, use_bias={use_bias}"
            )
        shapes.check_rate("dropout", dropout)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = key_dim if value_dim is None else value_dim
        self.score = scores.get(score)
        self.normalization = normalizations.get(normalization)
        self.pattern = patterns.get(pattern)
        self.position = positions.get(position)
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Of the projections, as in Keras's layer. `Layer.activity_regularizer` is of the output.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = seed

    # Building

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = _three_shapes(query_shape, value_shape, key_shape)
        self._check_shapes(query_shape, value_shape, key_shape)
        self._build_projections(query_shape, value_shape, key_shape)
        heads = [self._heads_shape(s, self.key_dim) for s in (query_shape, key_shape)]
        for slot in (self.score, self.position):
            if slot is not None and not slot.built:
                slot.build(*heads)
        # A Dropout layer rather than a seed generator, for the sake of its name in saved files.
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )

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
        dense = keras.layers.Dense(
            self.num_heads * size, use_bias=self.use_bias, name=name, **self._sublayer_arguments()
        )
        dense.build(shape)
        return dense

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

    def _heads_shape(self, shape, size):
        size = shape[-1] if size is None else size
        return (shape[0], shape[1], self.num_heads, size)

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

    # Computing: project → score (+ position) → mask → normalise → combine → project

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
    ):
        (query, value, key), (query_mask, value_mask, key_mask) = _three_inputs(
            (query, value, key), (query_mask, value_mask, key_mask)
        )
        attention_mask = masks.boolean("attention_mask", attention_mask)
        heads = self._project(query, value, key)
        attended = self._attend(
            *heads,
            mask=self._mask(
                query, value, query_mask, masks.both(value_mask, key_mask), attention_mask
            ),
            return_scores=return_attention_scores,
            training=training,
            use_causal_mask=use_causal_mask,
        )
        output = masks.carry(self._combine(attended, query), query_mask)
        if not return_attention_scores:
            return output
        return output, self._unfold_scores(attended.scores, query, value)

    def _project(self, query, value, key):
        """The heads: query (B, T, H, K), value (B, S, H, V) and key (B, S, H, K)."""
        if self.key_dim is None:
            return tuple(ops.expand_dims(x, 2) for x in (query, value, key))
        return (
            self._split(self._query_dense(query), self.key_dim),
            self._split(self._value_dense(value), self.value_dim),
            self._split(self._key_dense(key), self.key_dim),
        )

    def _split(self, projected, size):
        batch, length = ops.shape(projected)[:2]
        return ops.reshape(projected, (batch, length, self.num_heads, size))

    def _mask(self, query, value, query_mask, key_mask, attention_mask):
        """One mask that broadcasts to (B, H, T, S), or None."""
        mask = None
        if query_mask is not None:
            mask = query_mask[:, None, :, None]
        if key_mask is not None:
            mask = masks.both(mask, key_mask[:, None, None, :])
        if attention_mask is not None:
            rank = len(attention_mask.shape)
            if not 2 <= rank <= 4:
                raise ValueError(
                    "`attention_mask` must be (T, S), (B, T, S) or (B, H, T, S). Received: "
                    f"attention_mask.shape={tuple(attention_mask.shape)}"
                )
            if rank == 3:
                attention_mask = attention_mask[:, None]
            mask = masks.both(mask, attention_mask[None, None] if rank == 2 else attention_mask)
        return mask

    def _attend(self, query, value, key, mask, return_scores, training, use_causal_mask):
        """From heads to heads, by the kernel: all slots of the pipeline but the projections."""
        # Slots read their weights as they are stored, also where Keras would cast them on reading
        # because this layer computes in bfloat16 or float16.
        with backend.AutocastScope(None):
            bias = None
            if self.position is not None:
                query, key = self.position.encode(
                    query, key, ops.arange(ops.shape(query)[1]), ops.arange(ops.shape(key)[1])
                )
                bias = self.position.bias_between(self.num_heads)
            return kernels.attend(
                **self.score.as_kernel_arguments(query, key),
                value=value,
                bias=bias,
                mask=mask,
                pattern=self._whole_pattern(use_causal_mask),
                normalization=self.normalization.as_kernel_argument(),
                dropout=self.dropout if training else 0.0,
                seed=self._dropout_layer.seed_generator if self.dropout else None,
                return_scores=return_scores,
            )

    def _whole_pattern(self, use_causal_mask):
        """The pattern slot and what the call adds to it."""
        if not use_causal_mask:
            return self.pattern
        return patterns.Causal() if self.pattern is None else self.pattern & patterns.Causal()

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
        query_shape, value_shape, key_shape = _three_shapes(query_shape, value_shape, key_shape)
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
    ):
        masks.boolean("attention_mask", attention_mask)
        (query, value, key), _ = _three_inputs((query, value, key), (None, None, None))
        shape = self.compute_output_shape(query.shape, value.shape, key.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        shape = self._scores_shape(query.shape, value.shape)
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)


def _three_shapes(query_shape, value_shape=None, key_shape=None):
    """Shapes of query, value and key from any way of giving the three."""
    if query_shape and isinstance(query_shape[0], (list, tuple)):
        query_shape, value_shape, key_shape = _unpack("query_shape", query_shape)
    value_shape = query_shape if value_shape is None else value_shape
    key_shape = value_shape if key_shape is None else key_shape
    return tuple(query_shape), tuple(value_shape), tuple(key_shape)


def _three_inputs(inputs, explicit):
    """Query, value and key from any way of giving the three, and their masks.

    A mask is what the tensor carries and what was passed for it, together.
    """
    query, value, key = inputs
    query_mask, value_mask, key_mask = explicit
    if isinstance(query, (list, tuple)):
        if value is not None or key is not None:
            raise ValueError(
                "Pass query, value and key either as one list or as three arguments. Received: a "
                "list, and `value` or `key` beside it"
            )
        query, value, key = _unpack("query", query)
        if isinstance(query_mask, (list, tuple)):
            # Keras passes the masks that a list of tensors carries as a list.
            query_mask, value_mask, key_mask = (
                masks.both(listed, passed)
                for listed, passed in zip(
                    _unpack("query_mask", query_mask), (None, value_mask, key_mask), strict=True
                )
            )
    if value is None:
        # One tensor in both roles: what masks it as a query masks it as a value.
        value, value_mask = query, masks.both(query_mask, value_mask)
    tensors = {"query": query, "value": value, "key": value if key is None else key}
    passed = {"query": query_mask, "value": value_mask, "key": key_mask}
    found = []
    for name, tensor in tensors.items():
        mask = masks.boolean(f"{name}_mask", passed[name])
        carried = masks.implicit(tensor)
        # Keras itself passes what the tensor carries; looking at it twice would cost an operation.
        if carried is not None and carried is not passed[name]:
            mask = masks.both(masks.boolean(f"{name}_mask", carried), mask)
        if mask is not None:
            if len(tensor.shape) == 3:
                shapes.check_rank(f"{name}_mask", mask, 2, "(batch, positions)")
            lengths = {name: tensor.shape[1], f"{name}_mask": mask.shape[1]}
            shapes.check_same(f"Lengths of `{name}` and its mask", **lengths)
        found.append(mask)
    if tensors["key"] is tensors["value"] and key_mask is None:
        found[2] = None
    return tuple(tensors.values()), tuple(found)


def _unpack(name, listed):
    if not 2 <= len(listed) <= 3:
        raise ValueError(
            f"`{name}` as a list must be [query, value] or [query, value, key]. Received a list of "
            f"length {len(listed)}"
        )
    return tuple(listed) if len(listed) == 3 else (*listed, None)
