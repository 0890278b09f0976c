"""Scores by a small neural network: of each pair, or of keys alone."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_attention import shapes
from keras_attention.hints import Activation, Tensor
from keras_attention.kernels.additive import additive
from keras_attention.kinds import Count, keep
from keras_attention.scores.base import Learned, LearnedWithBias, multiply, unit


class Additive(LearnedWithBias):
    """score(q, k) = vᵀ tanh(W q + W' k + b). Bahdanau et al. 2015, appendix A.1.2.

    `W` is (H, Kq, units), `W'` (G, Kk, units), `b` and `v` (H, units). Each query and key is
    projected once. The hidden units of all pairs are never materialized: see
    `kernels.additive`. The bias is in the paper's code, not in its equations.

    Args:
        units: hidden units; None for the number of query features.
        use_bias: whether there is a `b`.
        normalize: whether `v` is g v / ‖v‖ (Salimans & Kingma 2016, equation 2), with a learned
            length `g` per head that is initialized to 1/√units.
        kernel_initializer, kernel_regularizer, kernel_constraint: of `W`, `W'` and `v`.
        bias_initializer, bias_regularizer, bias_constraint: of `b`.

    Raises:
        ValueError: `units` is neither None nor an integer of at least 1.

    >>> import keras
    >>> from keras_attention import Attention, scores
    >>> x, memory = keras.random.normal((2, 5, 8)), keras.random.normal((2, 7, 6))
    >>> layer = Attention(score=scores.Additive(16, normalize=True))
    >>> layer(x, memory).shape
    (2, 5, 6)
    >>> [weight.name for weight in layer.score.weights]
    ['query_kernel', 'key_kernel', 'bias', 'v', 'length']
    """

    def __init__(
        self,
        units: Count | None = None,
        use_bias: bool = True,
        normalize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(use_bias=use_bias, **kwargs)
        keep(self, locals())

    def build(self, query_shape, key_shape):
        heads, features = query_shape[2:]
        units = self.units or features
        self.query_kernel = self.add_kernel("query_kernel", (heads, features, units))
        self.key_kernel = self.add_kernel("key_kernel", (*key_shape[2:], units))
        self.bias = self.add_bias((heads, units))
        self.v = self.add_kernel("v", (heads, units))
        self.length = None
        if self.normalize:
            start = keras.initializers.Constant(units**-0.5)
            self.length = self.add_weight(name="length", shape=(heads, 1), initializer=start)

    def prepare_query(self, query: Tensor) -> Tensor:
        query = multiply("bthk,hku->bthu", query, self.query_kernel)
        return query if self.bias is None else query + ops.cast(self.bias, query.dtype)

    def prepare_key(self, key: Tensor) -> Tensor:
        return multiply("bsgk,gku->bsgu", key, self.key_kernel)

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        v = ops.cast(self.v, query.dtype)
        if self.length is not None:
            v = unit(v) * ops.cast(self.length, query.dtype)
        return additive(query, key, v)


class Concat(Learned):
    """score(q, k) = vᵀ tanh(W [q; k]). Luong et al. 2015, section 3.1, "concat".

    It is `Additive` without a bias, with one `W`, (G, Kq + Kk, units), over query and key together.
    It is split, so that nothing is concatenated; heads that share keys share it. `v` is (H, units).

    Args:
        units: hidden units; None for the number of query features.
        kernel_initializer, kernel_regularizer, kernel_constraint: of `W` and `v`.

    Raises:
        ValueError: `units` is neither None nor an integer of at least 1.

    >>> import keras
    >>> from keras_attention import Attention
    >>> x, memory = keras.random.normal((2, 5, 8)), keras.random.normal((2, 7, 6))
    >>> layer = Attention(score="concat")
    >>> layer(x, memory).shape
    (2, 5, 6)
    >>> layer.score.kernel.shape
    (1, 14, 8)
    """

    def __init__(self, units: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = shapes.check_count("units", units, optional=True)

    def build(self, query_shape, key_shape):
        heads, self._query_size = query_shape[2:]
        units = self.units or self._query_size
        self._sharing = heads // key_shape[2]
        size = self._query_size + key_shape[-1]
        self.kernel = self.add_kernel("kernel", (key_shape[2], size, units))
        self.v = self.add_kernel("v", (heads, units))

    def prepare_query(self, query: Tensor) -> Tensor:
        kernel = self.kernel[:, : self._query_size]
        if self._sharing > 1:
            kernel = ops.repeat(kernel, self._sharing, axis=0)
        return multiply("bthk,hku->bthu", query, kernel)

    def prepare_key(self, key: Tensor) -> Tensor:
        return multiply("bsgk,gku->bsgu", key, self.kernel[:, self._query_size :])

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        return additive(query, key, ops.cast(self.v, query.dtype))


class KeyOnly(LearnedWithBias):
    """score(q, k) = activation(wᵀ k + b): how much a key matters, for every query.

    Raffel & Ellis 2015 ("Feed-Forward Networks with Attention Can Solve Some Long-Term Memory
    Problems"), where a(h) = tanh(W h + b) is a function of the state alone. With `units` it is
    vᵀ activation(W k + b), with a hidden layer. The weights have one row per key head. It is
    not the position-wise network, `keras_attention.FeedForward`.

    Args:
        units: hidden units, or None for no hidden layer.
        activation: an activation, by name or as a function.
        use_bias: whether there is a `b`.
        kernel_initializer, kernel_regularizer, kernel_constraint: of `w`, or of `W` and `v`.
        bias_initializer, bias_regularizer, bias_constraint: of `b`.

    Raises:
        ValueError: `units` is neither None nor an integer of at least 1.

    >>> import keras
    >>> from keras_attention import Attention, scores
    >>> x, memory = keras.random.normal((2, 5, 8)), keras.random.normal((2, 7, 6))
    >>> _, weights = Attention(score=scores.KeyOnly())(x, memory, return_attention_scores=True)
    >>> bool(keras.ops.all(keras.ops.abs(weights[:, :, 0] - weights[:, :, 4]) < 1e-6))
    True
    """

    def __init__(
        self,
        units: int | None = None,
        activation: Activation = "tanh",
        use_bias: bool = True,
        **kwargs: Any,
    ):
        super().__init__(use_bias=use_bias, **kwargs)
        self.units = shapes.check_count("units", units, optional=True)
        self.activation = keras.activations.get(activation)

    def build(self, query_shape, key_shape):
        heads, features = key_shape[2:]
        units = self.units or 1
        self.kernel = self.add_kernel("kernel", (heads, features, units))
        self.bias = self.add_bias((heads, units))
        self.v = self.add_kernel("v", (heads, units)) if self.units else None

    # The score as a product with 1, which every kernel can compute.

    def prepare_query(self, query: Tensor) -> Tensor:
        return ops.ones_like(query[..., :1])

    def prepare_key(self, key: Tensor) -> Tensor:
        key = multiply("bsgk,gku->bsgu", key, self.kernel)
        if self.bias is not None:
            key = key + ops.cast(self.bias, key.dtype)
        key = self.activation(key)
        if self.v is None:
            return key
        return ops.expand_dims(multiply("bsgu,gu->bsg", key, self.v), -1)
