"""`CoPE`: positions that count what a query finds worth counting."""

from __future__ import annotations

import math
from typing import Any

from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Constraint, Initializer, Regularizer
from keras_attention.kernels import semantics
from keras_attention.positions.base import Position
from keras_attention.sequences import masks, shapes


class CoPE(Position):
    r"""Contextual position encoding. Golovneva et al. 2024 (arXiv 2405.18719), equations 3 to 5.

    The position of a key is the number of tokens, from it to the query, whose gate is open:

        g_ij = σ(q_i · k_j / √K)
        p_ij = min(Σ_{s = j … i} g_is, max_position)
        score(i, j) = q_i · k_j / √K + q_i · e[p_ij]

    with learned e[0] … e[max_position], interpolated between whole numbers. Gates of keys that are
    masked, or after the query, are 0, so that it is causal. The scale of the gates is that of the
    authors' code; the paper leaves out all scales.

    A position needs the gates of all keys between, so the term is computed for all pairs at once:
    a bias (B, H, T, S), and about three times the memory of the scores. Layers may share it.

    Args:
        max_position: the largest position; with the zeroth there is one more embedding.
        embeddings_initializer, embeddings_regularizer, embeddings_constraint: of e,
            (max_position + 1, K).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: `max_position` is no integer of at least 1, queries and keys have different
            numbers of features, or heads of unequal sizes share it.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import positions
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.SelfAttention(8, 4, causal=True, position=positions.CoPE(16))
    >>> layer(x).shape
    (2, 5, 32)
    >>> layer.position.embeddings.shape
    (17, 4)
    """

    encodes_alone = True
    has_query_bias = True

    def __init__(
        self,
        max_position: int = 63,
        embeddings_initializer: Initializer = "zeros",
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.max_position = shapes.check_count("max_position", max_position)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)

    def build(self, query_shape, key_shape):
        sizes = {"query": query_shape[-1], "key": key_shape[-1]}
        shapes.check_same("Features of query and key, of whose products CoPE has gates,", **sizes)
        self.embeddings = self._add_weight("embeddings", (self.max_position + 1, query_shape[-1]))

    def into_spec(self, spec, query, key, key_mask=None, projected=()):
        wide = shapes.accumulation_dtype(query, key)
        shapes.check_same(
            "Features of heads that share a CoPE",
            built=self.embeddings.shape[-1],
            received=query.shape[-1],
        )
        query, key = (semantics.finite(ops.cast(x, wide)) for x in (query, key))
        terms = ops.einsum("bthk,nk->bhtn", query, ops.cast(self.embeddings, wide))
        # The last whole number but one, so that there is one above it.
        counts = ops.clip(self._counts(spec, query, key), -math.inf, self.max_position)
        below = ops.clip(ops.floor(counts), -math.inf, self.max_position - 1)
        share = counts - ops.stop_gradient(below)
        # TensorFlow takes no index that NaN has become.
        at = ops.maximum(ops.cast(below, "int32"), 0)
        low, high = (backend.take_last(terms, index) for index in (at, at + 1))
        return spec.replace(biases=(*spec.biases, low + share * (high - low)))

    def _counts(self, spec, query, key):
        """How many gates of each query are open from each key on, (B, H, T, S)."""
        if key.shape[2] != query.shape[2]:
            key = ops.repeat(key, query.shape[2] // key.shape[2], axis=2)
        gates = ops.einsum("bthk,bshk->bhts", query * query.shape[-1] ** -0.5, key)
        at: Any = spec.positions
        i, j = at.pairs
        allowed = masks.both(semantics.mask(spec), j <= i)
        gates = ops.where(allowed, ops.sigmoid(gates), ops.zeros_like(gates))
        if at.consecutive:
            return ops.flip(backend.cumsum(ops.flip(gates, axis=-1)), axis=-1)
        # A cache may store keys in another order than that of their positions.
        first = ops.argsort(-at.key, axis=-1)
        back = ops.argsort(first, axis=-1)
        return _ordered(backend.cumsum(_ordered(gates, first)), back)


def _ordered(pairs, order):
    """Pairs (B, H, T, S) with their keys in an order, (S,) or (B, S)."""
    order = order[None] if len(order.shape) == 1 else order
    # By a sum: XLA cannot compile TensorFlow's gradient of a broadcast inside a loop.
    order = order[:, None, None] + ops.cast(ops.zeros_like(pairs), order.dtype)
    return ops.take_along_axis(pairs, order, axis=-1)
