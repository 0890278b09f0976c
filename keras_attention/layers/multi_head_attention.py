"""`MultiHeadAttention`: attention in several heads, with an output projection."""

import keras

from keras_attention import patterns, saving, shapes
from keras_attention.layers import projections
from keras_attention.layers.attention import Attention
from keras_attention.layers.axes import Axes

ops = keras.ops

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@saving.register
class MultiHeadAttention(Attention):
    r"""Multi-head attention, a drop-in for `keras.layers.MultiHeadAttention`.

    `Concat(head_1 … head_h) W^O` with
    `head_i = softmax(Q W_i^Q (K W_i^K)^T / √key_dim) V W_i^V` (Vaswani et al. 2017, section
    3.2.2). Constructor, call, and the names, shapes and order of the weights are those of
    `keras.layers.MultiHeadAttention`: the weights of one load into the other, with equal outputs.

    It differs where Keras's layer is wrong: it never erases the masks of its inputs; explicit
    masks count; a query with no key to attend to has output 0 on every path; returning scores,
    dropout at inference and the backend never change the output; a float mask other than 0 and 1
    is an error.

    Args:
        num_heads: number of heads.
        key_dim: features of each query and key head.
        value_dim: features of each value head; defaults to `key_dim`.
        dropout: rate at which weights are dropped in training.
        use_bias: whether the projections have biases.
        output_shape: features of the output, an integer or a tuple; defaults to the query's.
        attention_axes: the axes attended over, for inputs with more than three axes; None for all
            between batch and features.
        sliding_window: None, or w to see only keys at a distance below w.
        flash_attention: None, True or False, kept for Keras's sake, without effect: the kernel is
            chosen by what is asked for (see `ops.explain`), and never changes the answer.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
            activity_regularizer, kernel_constraint, bias_constraint: of the projections.
        use_gate: whether heads are multiplied by a sigmoid gate of the query before the output
            projection.
        seed: seed of the dropout.
        score, normalization, pattern, position, scores_regularizer: slots, as in `Attention`.
        num_key_value_heads, qk_norm, logit_soft_cap, use_sink: as in `Attention`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `Attention`. `value=None` is self-attention.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask; with
        `return_attention_scores=True` also the weights before dropout, (B, H, T, S).

    Raises:
        ValueError, TypeError: a size, a rate, a slot or a mask is not as described.

    Example:

    >>> import keras, keras_attention
    >>> ids = keras.ops.convert_to_tensor([[3, 5, 2, 0, 0], [7, 1, 4, 4, 2]])
    >>> x = keras.layers.Embedding(10, 32, mask_zero=True)(ids)
    >>> layer = keras_attention.MultiHeadAttention(num_heads=4, key_dim=8)
    >>> output, scores = layer(x, return_attention_scores=True)
    >>> output.shape, scores.shape
    ((2, 5, 32), (2, 4, 5, 5))
    >>> float(keras.ops.max(scores[0, :, :, 3:]))        # padding gets exactly nothing
    0.0
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        *,
        score="scaled_dot",
        normalization="softmax",
        pattern=None,
        position=None,
        num_key_value_heads=None,
        qk_norm=False,
        logit_soft_cap=None,
        use_sink=False,
        scores_regularizer=None,
        **kwargs,
    ):
        shapes.check_count("key_dim", key_dim)
        super().__init__(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            dropout=dropout,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            seed=seed,
            score=score,
            normalization=normalization,
            pattern=pattern,
            position=position,
            num_key_value_heads=num_key_value_heads,
            qk_norm=qk_norm,
            logit_soft_cap=logit_soft_cap,
            use_sink=use_sink,
            scores_regularizer=scores_regularizer,
            **kwargs,
        )
        # A public `output_shape` would be what a model's summary prints, the batch axis missing.
        self._output_shape = shapes.check_sizes("output_shape", output_shape, 1)
        self.attention_axes = shapes.check_sizes("attention_axes", attention_axes)
        self.sliding_window = shapes.check_count("sliding_window", sliding_window, optional=True)
        self.flash_attention = shapes.check_flag("flash_attention", flash_attention, optional=True)
        self.use_gate = shapes.check_flag("use_gate", use_gate)

    # Building

    def _check_shapes(self, query_shape, value_shape, key_shape):
        shapes.check_lengths(value_shape, key_shape)
        if len(query_shape) != len(value_shape) or len(query_shape) < 3:
            raise ValueError(
                "`query` and `value` must have the same number of axes, at least 3, (batch, "
                f"positions, features). Received: query.shape={query_shape}, "
                f"value.shape={value_shape}"
            )
        axes = Axes(len(query_shape), self.attention_axes)
        axes.check(query_shape, value_shape)

    def _build_projections(self, query_shape, value_shape, key_shape):
        self._axes = Axes(len(query_shape), self.attention_axes)
        queries, values = (self.num_heads, self.key_dim), (self.num_heads, self.value_dim)
        self._query_dense = self._einsum("query", query_shape, 1, queries)
        self._key_dense = self._einsum("key", key_shape, 1, (self._key_value_heads, self.key_dim))
        if self.use_gate:
            self._gate_dense = self._einsum("gate", query_shape, 1, values, activation="sigmoid")
        self._value_dense = self._einsum(
            "value", value_shape, 1, (self._key_value_heads, self.value_dim)
        )
        size = self._output_shape or (query_shape[-1],)
        self._output_dense = self._einsum("attention_output", (*query_shape[:-1], *values), 2, size)

    def _einsum(self, name, shape, summed, size, **kwargs):
        """A projection of the last `summed` axes of inputs of `shape` to axes of `size`."""
        inputs, outputs = _LETTERS[: len(shape)], _LETTERS[len(shape) :][: len(size)]
        free, bound = inputs[:-summed], inputs[-summed:]
        shapes.check_memory(name, (*shape[-summed:], *size))
        dense = keras.layers.EinsumDense(
            f"{inputs},{bound}{outputs}->{free}{outputs}",
            output_shape=(*shape[1:-summed], *size),
            bias_axes=outputs if self.use_bias else None,
            name=name,
            **self._sublayer_arguments(),
            **kwargs,
        )
        # Keras's EinsumDense would warn that it drops the mask that this layer has read already.
        dense.supports_masking = True
        dense.build(shape)
        return dense

    @property
    def output_dense(self):
        """The layer that projects the heads to the output."""
        return self._output_dense

    # Computing

    def _project(self, query, value, key):
        if not self._axes.trivial:
            self._axes.check(query.shape, value.shape)
            value, key = (self._axes.matched(x, query) for x in (value, key))
        return super()._project(query, value, key)

    def _heads(self, x, role):
        heads = getattr(self, f"_{role}_dense")(x)
        return heads if self._axes.trivial else self._axes.fold(heads)

    def _project_together(self, query, value, key):
        return self._axes.trivial and super()._project_together(query, value, key)

    def _pair(self, name, given, query, value):
        axes = Axes(len(query.shape), self.attention_axes)
        if given is not None and not axes.trivial:
            raise ValueError(
                f"`{name}` needs inputs (batch, positions, features), attended over their one axis "
                f"of positions. Received: query.shape={tuple(query.shape)}, "
                f"attention_axes={self.attention_axes}"
            )
        return super()._pair(name, given, query, value)

    def _bias(self, bias, query, value):
        if bias is not None and not self._axes.trivial:
            bias = ops.convert_to_tensor(bias)
            return self._axes.fold_mask(bias, query, value, "attention_bias")
        return super()._bias(bias, query, value)

    def _mask(self, query, value, query_mask, key_mask, attention_mask):
        if not self._axes.trivial:
            if query_mask is not None:
                query_mask = self._axes.fold_padding(query_mask, query)
            if key_mask is not None:
                key_mask = self._axes.fold_padding(key_mask, value)
            if attention_mask is not None:
                attention_mask = self._axes.fold_mask(attention_mask, query, value)
        return super()._mask(query, value, query_mask, key_mask, attention_mask)

    def _whole_pattern(self, use_causal_mask):
        window = None
        if self.sliding_window is not None:
            window = patterns.SlidingWindow(self.sliding_window - 1, self.sliding_window - 1)
        return patterns.every(super()._whole_pattern(use_causal_mask), window)

    def _why_no_cache(self):
        if self.attention_axes not in (None, (1,), (-2,)):
            return f"attention_axes={self.attention_axes} is not the one axis of positions"
        return super()._why_no_cache()

    def _combine(self, attended, query):
        heads = attended.output
        if not self._axes.trivial:
            heads = self._axes.unfold(heads, query)
        if self.use_gate:
            heads = ops.multiply(heads, self._gate_dense(query))
        if self._axes.trivial and projections.plain(self, self._output_dense):
            size = self._output_shape or (query.shape[-1],)
            output = projections.from_heads(heads, self._output_dense, size)
        else:
            output = self._output_dense(heads)
        if attended.has_keys is None or not self.use_bias:
            return output
        return self._without_bias_where_unreached(output, attended.has_keys, query)

    def _without_bias_where_unreached(self, output, reached, query):
        """A query that no head found a key for has output 0, not the output's bias."""
        reached = ops.any(reached, axis=1)
        if not self._axes.trivial:
            batch = ops.shape(query)[0]
            reached = ops.broadcast_to(reached, _folded(self._axes, query))
            reached = self._axes.unfold(reached[..., None, None], query)[..., 0, 0]
            reached = ops.reshape(reached, (batch, *ops.shape(query)[1:-1]))
        for _ in range(len(output.shape) - len(reached.shape)):
            reached = ops.expand_dims(reached, -1)
        return ops.where(reached, output, ops.zeros_like(output))

    def _unfold_scores(self, scores, query, value):
        return scores if self._axes.trivial else self._axes.unfold_scores(scores, query, value)

    # Shapes, symbolically

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        super().compute_output_shape(query_shape, value_shape, key_shape)
        query_shape = tuple(query_shape[0] if _is_list(query_shape) else query_shape)
        return (*query_shape[:-1], *self._output_shape) if self._output_shape else query_shape

    def _scores_shape(self, query_shape, value_shape):
        axes = Axes(len(query_shape), self.attention_axes)
        return axes.scores_shape(self.num_heads, query_shape, value_shape)


def _is_list(shapes_or_shape):
    return isinstance(shapes_or_shape[0], (list, tuple))


def _folded(axes, query):
    """(B · free, T) of a query (B, …, D)."""
    return ops.shape(axes.fold(query[..., None]))[:2]
