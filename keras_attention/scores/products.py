"""Scores that are inner products: of query and key, plain, scaled, or projected."""

from __future__ import annotations

from typing import Any

from keras_attention import shapes
from keras_attention.hints import Tensor
from keras_attention.scores.base import Learned, Score, multiply, unit


class Dot(Score):
    """score(q, k) = qᵀ k. Luong et al. 2015, section 3.1, "dot".

    >>> import keras
    >>> from keras_attention import scores
    >>> query = keras.ops.array([[[[3.0, 4.0]]]])                           # (B, T, H, K)
    >>> key = keras.ops.array([[[[3.0, 4.0]], [[-4.0, 3.0]]]])              # (B, S, H, K)
    >>> keras.ops.convert_to_numpy(scores.Dot()(query, key))[0, 0].round(2)
    array([[25.,  0.]], dtype=float32)
    """

    def factor(self, size: int) -> float:
        return 1.0


class ScaledDot(Score):
    """score(q, k) = qᵀ k / √K. Vaswani et al. 2017, equation 1.

    Args:
        scale: the factor, or None for 1/√K. It multiplies the query before the product.

    >>> import keras
    >>> from keras_attention import scores
    >>> query = keras.ops.array([[[[3.0, 4.0]]]])                           # (B, T, H, K)
    >>> key = keras.ops.array([[[[3.0, 4.0]], [[-4.0, 3.0]]]])              # (B, S, H, K)
    >>> keras.ops.convert_to_numpy(scores.ScaledDot()(query, key))[0, 0].round(2)
    array([[17.68,  0.  ]], dtype=float32)
    """

    def __init__(self, scale: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale = shapes.check_number("scale", scale, optional=True)

    def factor(self, size: int) -> float:
        return size**-0.5 if self.scale is None else self.scale


class Cosine(Score):
    """score(q, k) = qᵀ k / (‖q‖ ‖k‖). Graves et al. 2014 (Neural Turing Machines), equation 6.

    A zero vector has score 0 with every other vector.

    Args:
        scale: a constant that multiplies the cosine (the sharpness β of Graves et al., equation 5).

    >>> import keras
    >>> from keras_attention import scores
    >>> query = keras.ops.array([[[[3.0, 4.0]]]])                           # (B, T, H, K)
    >>> key = keras.ops.array([[[[3.0, 4.0]], [[-4.0, 3.0]]]])              # (B, S, H, K)
    >>> keras.ops.convert_to_numpy(scores.Cosine(scale=10.0)(query, key))[0, 0].round(2)
    array([[10.,  0.]], dtype=float32)
    """

    def __init__(self, scale: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale = shapes.check_number("scale", scale)

    def factor(self, size: int) -> float:
        return self.scale

    def prepare_query(self, query: Tensor) -> Tensor:
        return unit(query)

    def prepare_key(self, key: Tensor) -> Tensor:
        return unit(key)


class General(Learned):
    """score(q, k) = qᵀ W k. Luong et al. 2015, section 3.1, "general".

    `W` is (H, Kq, Kk), one matrix per head, so that query and key may differ in size.

    Args:
        kernel_initializer, kernel_regularizer, kernel_constraint: of `W`.

    >>> import keras
    >>> from keras_attention import Attention
    >>> x, memory = keras.random.normal((2, 5, 8)), keras.random.normal((2, 7, 6))
    >>> Attention(score="general")(x, memory).shape
    (2, 5, 6)
    """

    def build(self, query_shape, key_shape):
        self.kernel = self.add_kernel("kernel", (query_shape[2], query_shape[-1], key_shape[-1]))

    def prepare_query(self, query: Tensor) -> Tensor:
        return multiply("bthk,hkj->bthj", query, self.kernel)


class ReducedRank(Learned):
    """score(q, k) = (qᵀ U) (Vᵀ k), which is qᵀ W k with a W = U Vᵀ of low rank.

    Kim et al. 2017 ("Hadamard Product for Low-rank Bilinear Pooling"), section 2. `U` is
    (H, Kq, rank) and `V` (G, Kk, rank), so that query and key may differ in size. It needs
    rank · (Kq + Kk) weights per head; `General` needs Kq · Kk. There is no division by √rank.

    Args:
        rank: projected features of each side.
        kernel_initializer, kernel_regularizer, kernel_constraint: of `U` and `V`.

    Raises:
        ValueError: `rank` is not an integer of at least 1.

    >>> import keras
    >>> from keras_attention import Attention, scores
    >>> x, memory = keras.random.normal((2, 5, 8)), keras.random.normal((2, 7, 6))
    >>> Attention(score=scores.ReducedRank(3))(x, memory).shape
    (2, 5, 6)
    """

    def __init__(self, rank: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.rank = shapes.check_count("rank", rank)

    def build(self, query_shape, key_shape):
        self.query_kernel = self.add_kernel("query_kernel", (*query_shape[2:], self.rank))
        self.key_kernel = self.add_kernel("key_kernel", (*key_shape[2:], self.rank))

    def prepare_query(self, query: Tensor) -> Tensor:
        return multiply("bthk,hku->bthu", query, self.query_kernel)

    def prepare_key(self, key: Tensor) -> Tensor:
        return multiply("bsgk,gku->bsgu", key, self.key_kernel)
