"""`RelativePositionAttention`: attention with learned embeddings of distances."""

from __future__ import annotations

from typing import Any

from keras_attention import positions, saving
from keras_attention.hints import Constraint, Initializer, Regularizer, Unpack
from keras_attention.layers.attention import Attention
from keras_attention.layers.options import AttentionOptions


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
        **kwargs: all other arguments of `Attention` but `position`.

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
        num_heads: int,
        key_dim: int,
        max_distance: int,
        value_dim: int | None = None,
        use_values: bool = True,
        per_head: bool = False,
        embeddings_initializer: Initializer = "glorot_uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Unpack[AttentionOptions],
    ):
        saving.check_free(type(self), kwargs)
        of_shaw: dict[str, Any] = {
            "use_values": use_values,
            "per_head": per_head,
            "embeddings_initializer": embeddings_initializer,
            "embeddings_regularizer": embeddings_regularizer,
            "embeddings_constraint": embeddings_constraint,
        }
        position = positions.Shaw(max_distance, name="shaw", **of_shaw)
        kwargs["position"] = position
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.max_distance = position.max_distance
        self.use_values = position.use_values
        self.per_head = position.per_head
        self.embeddings_initializer = position.embeddings_initializer
        self.embeddings_regularizer = position.embeddings_regularizer
        self.embeddings_constraint = position.embeddings_constraint
