"""`TransformerBlock`: attention and a feed-forward network, each with a residual and a norm."""

import keras

from keras_attention import (
    inputs,
    masks,
    normalizations,
    patterns,
    regularizers,
    saving,
    scores,
    shapes,
)
from keras_attention import positions as position_slots
from keras_attention.layers.exact_inputs import ExactInputs
from keras_attention.layers.feed_forward import FeedForward
from keras_attention.layers.multi_head_attention import MultiHeadAttention

ops = keras.ops


@saving.register
class TransformerBlock(ExactInputs):
    r"""An encoder block of Vaswani et al. 2017, section 3.1; decoder-only with `causal=True`.

    Post-norm, the default: `x = norm(x + attention(x))`, then `x = norm(x + feed_forward(x))`.
    Pre-norm (`normalize_first=True`, Xiong et al. 2020): `x = x + attention(norm(x))`, then
    `x = x + feed_forward(norm(x))`; a stack of these wants one more norm at its end.

    Args:
        intermediate_dim: features inside the feed-forward network.
        num_heads: number of attention heads; must divide the features of the input.
        dropout: rate on the attention weights and on both branches before they are added.
        activation: of the feed-forward network.
        layer_norm_epsilon: added to variances.
        normalize_first: whether the norms stand before the branches.
        causal: whether position t sees only positions up to t.
        gated: whether the feed-forward network is gated.
        score, normalization, pattern, position, scores_regularizer: slots of the attention, as in
            `Attention`.
        kernel_initializer, bias_initializer: of all projections.
        seed: seed of the dropouts.
        num_key_value_heads, qk_norm, logit_soft_cap, use_sink: of the attention, as in `Attention`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, T, D).
        mask: boolean (B, T), True = a real token; counts together with the mask that `x` carries.
        attention_mask: boolean (T, T), (B, T, T) or (B, H, T, T), True = attend.
        attention_bias, positions, segment_ids: as in `Attention`, for self-attention.
        return_attention_scores: whether to return `(output, scores)`, scores (B, H, T, T).
        training: whether to drop.

    Returns:
        (B, T, D), carrying the mask.

    Raises:
        ValueError, TypeError: `num_heads` does not divide D, or as `MultiHeadAttention` and
            `FeedForward`.

    Example:

    >>> import keras, keras_attention
    >>> ids = keras.ops.convert_to_tensor([[3, 5, 2, 0, 0]])
    >>> x = keras_attention.ScaledEmbedding(10, 32, mask_zero=True)(ids)
    >>> x = keras_attention.SinCosPositionEmbedding()(x)
    >>> keras_attention.TransformerBlock(intermediate_dim=64, num_heads=4)(x).shape
    (1, 5, 32)
    """

    def __init__(
        self,
        intermediate_dim,
        num_heads,
        dropout=0.0,
        activation="relu",
        layer_norm_epsilon=1e-5,
        normalize_first=False,
        causal=False,
        gated=False,
        score="scaled_dot",
        normalization="softmax",
        pattern=None,
        position=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        num_key_value_heads=None,
        qk_norm=False,
        logit_soft_cap=None,
        use_sink=False,
        scores_regularizer=None,
        **kwargs,
    ):
        shapes.check_count("intermediate_dim", intermediate_dim)
        shapes.check_count("num_heads", num_heads)
        shapes.check_rate("dropout", dropout)
        shapes.check_number("layer_norm_epsilon", layer_norm_epsilon, above=0)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.normalize_first = normalize_first
        self.causal = causal
        self.gated = gated
        self.score = scores.get(score)
        self.normalization = normalizations.get(normalization)
        self.pattern = patterns.get(pattern)
        self.position = position_slots.get(position)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed
        self.num_key_value_heads = num_key_value_heads
        self.qk_norm = qk_norm
        self.logit_soft_cap = logit_soft_cap
        self.use_sink = use_sink
        self.scores_regularizer = regularizers.get(scores_regularizer)
        # Its features are known when the block is built. Whether the rest goes together, now.
        self._make_attention(key_dim=1)

    def _make_attention(self, key_dim):
        return MultiHeadAttention(
            self.num_heads,
            key_dim,
            dropout=self.dropout,
            score=self.score,
            normalization=self.normalization,
            pattern=self.pattern,
            position=self.position,
            num_key_value_heads=self.num_key_value_heads,
            qk_norm=self.qk_norm,
            logit_soft_cap=self.logit_soft_cap,
            use_sink=self.use_sink,
            scores_regularizer=self.scores_regularizer,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            # Another one, or weights and branches would be dropped by the same numbers.
            seed=None if self.seed is None else self.seed + 1,
            name="attention",
            dtype=self.dtype_policy,
        )

    def build(self, x_shape, mask_shape=None, attention_mask_shape=None):
        dim = self._check(x_shape)
        self.attention = self._make_attention(dim // self.num_heads)
        self.attention.build(x_shape)
        self.attention_norm = self._norm("attention_norm", x_shape)
        self.feed_forward = FeedForward(
            self.intermediate_dim,
            self.activation,
            gated=self.gated,
            name="feed_forward",
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
        )
        self.feed_forward.build(x_shape)
        self.feed_forward_norm = self._norm("feed_forward_norm", x_shape)
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy
        )

    def _check(self, x_shape):
        if len(x_shape) != 3 or x_shape[-1] is None or x_shape[-1] % self.num_heads:
            raise ValueError(
                "`x` must be (batch, positions, features), with features that "
                f"`num_heads` divides. Received: x.shape={tuple(x_shape)}, "
                f"num_heads={self.num_heads}"
            )
        return x_shape[-1]

    def _norm(self, name, shape):
        norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, name=name, dtype=self.dtype_policy
        )
        norm.build(shape)
        return norm

    def call(
        self,
        x,
        mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        attention_bias=None,
        positions=None,
        segment_ids=None,
    ):
        mask = masks.both(
            masks.boolean("mask", mask), None if mask is masks.implicit(x) else masks.implicit(x)
        )
        scores_of = {}

        def attend(x):
            attended = self.attention(
                x,
                query_mask=mask,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
                use_causal_mask=self.causal,
                attention_bias=attention_bias,
                positions=positions,
                segment_ids=segment_ids,
            )
            if return_attention_scores:
                attended, scores_of["attention"] = attended
            return attended

        x = self._branch(x, attend, self.attention_norm, training)
        x = self._branch(x, self.feed_forward, self.feed_forward_norm, training)
        x = masks.carry(x, mask)
        return (x, scores_of["attention"]) if return_attention_scores else x

    def _branch(self, x, function, norm, training):
        """One residual branch, with its norm before it or after the sum."""
        y = self._dropout_layer(function(norm(x) if self.normalize_first else x), training=training)
        return ops.add(x, y) if self.normalize_first else norm(ops.add(x, y))

    def compute_mask(self, x, previous_mask=None):
        return previous_mask

    def compute_output_shape(self, x_shape, mask_shape=None, attention_mask_shape=None):
        self._check(x_shape)
        return tuple(x_shape)

    def compute_output_spec(
        self,
        x,
        mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        attention_bias=None,
        positions=None,
        segment_ids=None,
    ):
        masks.boolean("mask", mask)
        masks.boolean("attention_mask", attention_mask)
        inputs.pair("positions", positions, x, x)
        inputs.pair("segment_ids", segment_ids, x, x)
        output = keras.KerasTensor(self.compute_output_shape(x.shape), dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        shape = (x.shape[0], self.num_heads, x.shape[1], x.shape[1])
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)
