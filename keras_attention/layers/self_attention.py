"""`SelfAttention`: a sequence attends to itself."""

from keras_attention import patterns, saving, shapes
from keras_attention.layers.attention import Attention


@saving.register
class SelfAttention(Attention):
    """Attention of a sequence over itself: `Attention` with one input.

    `SelfAttention(8, 16)(x)` is `Attention(8, 16)([x, x, x])`, and with `causal=True` each position
    sees only itself and those before it.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        causal: whether position t sees only positions up to t.
        score, normalization, pattern, position, dropout, use_bias, kernel_initializer,
            bias_initializer, kernel_regularizer, bias_regularizer, activity_regularizer,
            kernel_constraint, bias_constraint, seed, num_key_value_heads, qk_norm, logit_soft_cap,
            use_sink, scores_regularizer: as in `Attention`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `Attention`, except `value` and `key`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `Attention`; and if it is built for a second sequence of another
            shape.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 128))
    >>> keras_attention.SelfAttention(8, 16, causal=True)(x).shape
    (2, 5, 128)
    """

    one_sequence = True

    def __init__(
        self,
        num_heads=1,
        key_dim=None,
        value_dim=None,
        causal=False,
        *,
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
        super().__init__(**saving.forwarded(locals(), "causal"))
        self.causal = shapes.check_flag("causal", causal)
        self.preset_pattern = patterns.Causal() if self.causal else None
