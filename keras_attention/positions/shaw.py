"""`Shaw`: learned embeddings of clipped distances, in keys and in values."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_attention import scores
from keras_attention.hints import Constraint, Initializer, Regularizer
from keras_attention.kinds import Count, keep
from keras_attention.positions.base import Position


class Shaw(Position):
    r"""Relative position representations of Shaw et al. 2018, equations 3 and 4.

    `score[i, j] = q_i · (k_j + a^K[d]) · scale` and `output_i = Σ_j weight[i, j] (v_j + a^V[d])`,
    with `d = clip(j − i, −max_distance, max_distance)` and learned `a^K`, `a^V` of
    2 · max_distance + 1 rows. No table of all pairs, (T, S, key_dim), is materialized: see
    `kernels.relative`.

    Args:
        max_distance: k of the paper; larger distances are clipped to k.
        use_values: whether the values have embeddings too. The paper found that those of the keys
            may be enough (table 3).
        per_head: whether each head has its own embeddings; the paper shares them.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of both.

    Raises:
        ValueError: `max_distance` is no integer of at least 1; the attention's score is not an
            inner product of the heads themselves, "dot" or "scaled_dot"; or layers of different
            sizes share one object.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> layer = keras_attention.SelfAttention(2, 4, position=positions.Shaw(3))
    >>> layer(keras.random.normal((2, 5, 8))).shape
    (2, 5, 8)
    >>> [tuple(weight.shape) for weight in layer.position.weights]
    [(1, 7, 4), (1, 7, 4)]
    """

    scores = (scores.Dot, scores.ScaledDot)
    encodes_alone = True
    _build_sizes = ("value_size",)

    def __init__(
        self,
        max_distance: Count,
        use_values: bool = True,
        per_head: bool = False,
        embeddings_initializer: Initializer = "glorot_uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        keep(self, locals())
        self._value_size = None

    def build_values(self, value_shape):
        if self.use_values:
            size = value_shape[-1]
            if self.built:
                self._check("value_dim", self._value_size, size)
            self._value_size = size

    def build(self, query_shape, key_shape):
        self._num_heads = query_shape[2]
        self._of_keys = self._embeddings("key_embeddings", query_shape[-1])
        self._of_values = None
        if self.use_values:
            self._of_values = self._embeddings("value_embeddings", self._value_size)

    def _check(self, name, built, received):
        if built != received:
            raise ValueError(
                "Layers sharing a Shaw need equal sizes. It was built for "
                f"{name}={built}. Received: {name}={received}"
            )

    def _embeddings(self, name, size):
        return self._add_weight(
            "embeddings",
            (self._num_heads if self.per_head else 1, 2 * self.max_distance + 1, size),
            name=name,
        )

    def encode(self, query, key, query_positions, key_positions):
        self._check("key_dim", self._of_keys.shape[-1], query.shape[-1])
        return query, key

    def into_spec(self, spec, query, key, key_mask=None, projected=()):
        if self.per_head:
            self._check("num_heads", self._num_heads, query.shape[2])
        tables = self._of_keys, self._of_values
        keys, values = (None if table is None else ops.convert_to_tensor(table) for table in tables)
        return spec.replace(relative_keys=keys, relative_values=values)
