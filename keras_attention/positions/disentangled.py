"""`Disentangled`: learned distances that each layer projects as queries and as keys (DeBERTa)."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention import scores, shapes
from keras_attention.backend import backend
from keras_attention.hints import Constraint, Initializer, Regularizer, Tensor
from keras_attention.kernels import relative, semantics
from keras_attention.kinds import keep
from keras_attention.positions.base import Position
from keras_attention.positions.learned_bias import check_distance
from keras_attention.spec import Positions

# The number of terms: content to content, content to position, position to content.
_TERMS = 3


class Disentangled(Position):
    r"""Disentangled attention of DeBERTa: He et al. 2021 (arXiv 2006.03654), equation 4.

    `score(i, j) = (q_i · k_j + q_i · k^r_δ + k_j · q^r_δ) / √(3 K)`, where `k^r` and `q^r` are the
    rows of a learned table E, (2k, D), projected by the layer's own weights of keys and queries, as
    its inputs are; and, of distances i − j,

        δ = clip(k + bucket(i − j), 0, 2k − 1)

        bucket(d) = d                                                        for |d| ≤ e = k / 2
        bucket(d) = sign(d) (e + ⌈(e − 1) · ln(|d| / e) / ln((m − 1) / e)⌉)    otherwise

    with m = `max_distance`. The buckets are those of DeBERTa's versions 2 and 3, in float32 as in
    their code; the paper has none, which is `max_distance=None`: bucket(d) = d. In the third term
    the paper writes δ of j − i; trained weights are of the code, and of i − j.

    DeBERTa shares one table among its layers: pass one `Disentangled` to all. Kernels get the last
    two terms as a bias of all pairs, (B, H, T, S).

    Args:
        num_buckets: 2k, rows of the table, for both directions together.
        max_distance: the distance from which on all share a row, or None for a row per distance.
        norm: None, or a Keras layer that is applied to the table, such as
            `keras.layers.LayerNormalization` (versions 2 and 3).
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of the table.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is too small, or `num_buckets` no multiple of 4; the score is not
            "scaled_dot", or has another scale; queries and keys are projected from inputs of
            unequal sizes, or layers of different sizes share it; or it is used in a function, which
            projects nothing.
        TypeError: `norm` is not a layer.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> x = keras.random.normal((2, 5, 32))
    >>> position = positions.Disentangled(16, 50)
    >>> layers = [keras_attention.SelfAttention(8, 4, position=position) for _ in range(2)]
    >>> layers[1](layers[0](x)).shape
    (2, 5, 32)
    >>> position.embeddings.shape
    (16, 32)
    """

    scores = (scores.ScaledDot,)
    divides = "all three terms by √(3 K)"
    encodes_alone = True
    _build_sizes = ("features",)
    has_query_bias = True

    def __init__(
        self,
        num_buckets: int = 512,
        max_distance: int | None = 512,
        norm: keras.layers.Layer | None = None,
        embeddings_initializer: Initializer = "uniform",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        keep(self, locals())
        self.num_buckets = shapes.check_count("num_buckets", num_buckets, 4)
        if num_buckets % 4:
            raise ValueError(
                "Each of two directions has near and far buckets, as many of either, so "
                f"`num_buckets` must be a multiple of 4. Received: num_buckets={num_buckets}"
            )
        # With fewer the logarithm of (m − 1) / e would not be above 0.
        least = self.num_buckets // 4 + 2
        self.max_distance = check_distance(max_distance, least, optional=True)
        self._features: int | None = None

    def build_inputs(self, query_shape, key_shape):
        name = "Numbers of features that Disentangled's table is projected from"
        shapes.check_same(name, query=query_shape[-1], key=key_shape[-1])
        if self.built and self._features != query_shape[-1]:
            raise ValueError(
                "Layers sharing a Disentangled need inputs of one number of features. It was built "
                f"for {self._features}. Received: {query_shape[-1]}"
            )
        self._features = query_shape[-1]

    def build(self, query_shape, key_shape):
        _check_of_a_layer(self._features is not None)
        self.embeddings = self._add_weight("embeddings", (self.num_buckets, self._features))
        if self.norm is not None and not self.norm.built:
            self.norm.build(self.embeddings.shape)

    def projected_table(self) -> Tensor:
        table = ops.convert_to_tensor(self.embeddings)
        return table if self.norm is None else self.norm(table)

    def rows(self) -> np.ndarray:
        """The row of each j − i, from −m to m for m = `max_distance`: a NumPy array of int32.

        Larger distances have the rows of ±m, which is k with `max_distance=None`.
        """
        return _rows(self.num_buckets, self.max_distance)

    def encode(self, query, key, query_positions, key_positions):
        return query * _TERMS**-0.5, key

    def into_spec(self, spec, query, key, key_mask=None, projected=()):
        _check_of_a_layer(bool(projected))
        wide = shapes.accumulation_dtype(query, key)
        query, key, of_queries, of_keys = (
            semantics.finite(ops.cast(x, wide)) for x in (query, key, *projected)
        )
        heads, size = query.shape[2:]
        at: Positions = spec.positions
        # Positions with queries and keys exchanged.
        back = Positions(at.key, at.query, at.consecutive, -at.offset)
        to_position = _products(query, of_keys, self.rows(), heads, at)
        # `encode` has divided queries by √3.
        of_queries = of_queries * _TERMS**-0.5
        to_content = _products(key, of_queries, self.rows()[::-1].copy(), heads, back)
        bias = (to_position + ops.swapaxes(to_content, 2, 3)) * size**-0.5
        return spec.replace(biases=(*spec.biases, bias))


def _check_of_a_layer(known):
    """Raises if nothing is known of a layer."""
    if not known:
        raise ValueError(
            "Disentangled has a table that a layer projects by its own weights: use an attention "
            "layer. Received: a call of a function"
        )


def _products(array, table, rows, heads, positions):
    """Products (B, H, T, S) of an array (B, T, H, K) and, for each pair, a row of (N, H, K).

    Either may have fewer heads. `rows` has the row of each distance from −m to m.
    """
    array, table = (
        x if x.shape[axis] == heads else ops.repeat(x, heads // x.shape[axis], axis=axis)
        for x, axis in ((array, 2), (table, 1))
    )
    table = ops.transpose(backend.take(table, ops.convert_to_tensor(rows), axis=0), (1, 0, 2))
    length = ops.shape(positions.key)[-1]
    return relative.scores(ops.transpose(array, (0, 2, 1, 3)), table, length, positions)


@functools.lru_cache(maxsize=64)
def _rows(num_buckets, max_distance):
    k = num_buckets // 2
    last = k if max_distance is None else max_distance
    distance = np.arange(last + 1)
    bucket = distance
    if max_distance is not None:
        exact = k // 2
        # Every step in float32, as in DeBERTa's code: a distance may lie on the edge of two.
        ratio = np.maximum(distance, exact).astype("float32") / np.float32(exact)
        steps = np.log(ratio) / np.log(np.float32((last - 1) / exact)) * np.float32(exact - 1)
        far = np.ceil(steps).astype("int32") + exact
        bucket = np.where(distance <= exact, distance, far)
    # Keys before the query, at −last … −1, are at positive distances i − j.
    both = np.concatenate([np.flip(bucket[1:]), -bucket])
    found = np.clip(k + both, 0, num_buckets - 1).astype("int32")
    return np.broadcast_to(found, found.shape)  # which may not be written
