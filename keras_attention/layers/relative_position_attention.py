"""`RelativePositionAttention`: attention with learned embeddings of distances."""

from keras_attention import positions, saving
from keras_attention.layers.attention import Attention


@saving.register
class RelativePositionAttention(Attention):
    """Attention with the relative positions of Shaw et al. 2018, equations 3 and 4.

    `Attention` with the position `Shaw(max_distance)`: keys and values have learned embeddings of
    the distance between the two positions, clipped at ±max_distance.

    Args:
        num_heads, key_dim: as in `Attention`.
        max_distance: k of the paper: 2k + 1 embeddings; distances beyond k are clipped to k.
        value_dim: features of each value head; defaults to `key_dim`.
        use_values: whether the values have embeddings too.
        per_head: whether each head has its own embeddings; the paper shares them.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the embeddings.
        score, normalization, pattern, dropout, use_bias, kernel_initializer, bias_initializer,
            kernel_regularizer, bias_regularizer, activity_regularizer, kernel_constraint,
            bias_constraint, seed, num_key_value_heads, qk_norm, logit_soft_cap, use_sink,
            scores_regularizer: as in `Attention`.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments are those of `Attention`.

    Returns:
        (B, T, num_heads · value_dim), carrying the query's mask.

    Raises:
        ValueError, TypeError: as `Attention` and `positions.Shaw`.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.RelativePositionAttention(2, 4, max_distance=3)
    >>> layer(x).shape, layer(x, keras.random.normal((2, 5, 8))).shape
    ((2, 12, 8), (2, 12, 8))
    """

    _fixed_arguments = ("position",)

    def __init__(
        self,
        num_heads,
        key_dim,
        max_distance,
        value_dim=None,
        use_values=True,
        per_head=False,
        embeddings_initializer="glorot_uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        *,
        score="scaled_dot",
        normalization="softmax",
        pattern=None,
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
        saving.check_free(type(self), kwargs)
        of_shaw = {
            "use_values": use_values,
            "per_head": per_head,
            "embeddings_initializer": embeddings_initializer,
            "embeddings_regularizer": embeddings_regularizer,
            "embeddings_constraint": embeddings_constraint,
        }
        position = positions.Shaw(max_distance, name="shaw", **of_shaw)
        super().__init__(**saving.forwarded(locals(), "of_shaw", "max_distance", *of_shaw))
        self.max_distance = position.max_distance
        self.use_values = position.use_values
        self.per_head = position.per_head
        self.embeddings_initializer = position.embeddings_initializer
        self.embeddings_regularizer = position.embeddings_regularizer
        self.embeddings_constraint = position.embeddings_constraint
