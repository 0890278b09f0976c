"""The built-in scores: inner products, small networks, and positions of keys."""

import functools
import math
from typing import Any

import keras
from keras import ops

from keras_attention.backend import backend
from keras_attention.core.hints import Activation, Tensor
from keras_attention.kernels.additive import additive
from keras_attention.scores.base import Learned, LearnedWithBias, Score, multiply, unit
from keras_attention.sequences import shapes


class Dot(Score):
    """score(q, k) = qᵀ k. Luong et al. 2015, section 3.1, "dot".

    >>> import keras
    >>> from keras_attention import scores
    >>> query = keras.ops.array([[[[3.0, 4.0]]]])                           # (B, T, H, K)
    >>> key = keras.ops.array([[[[3.0, 4.0]], [[-4.0, 3.0]]]])              # (B, S, H, K)
    >>> keras.ops.convert_to_numpy(scores.Dot()(query, key))[0, 0].round(2)
    array([[25.,  0.]], dtype=float32)
    """

    _factor = 1.0


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

    _factor = None

    def __init__(self, scale: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.scale = self._factor = shapes.check_number("scale", scale, optional=True)


class Cosine(Score):
    """score(q, k) = qᵀ k / (‖q‖ ‖k‖). Graves et al. 2014 (Neural Turing Machines), equation 6.

    A zero vector has score 0 with every other vector. In Swin v2 (Liu et al. 2022, section 3.2)
    each head learns a scale of its own, exp(min(w, ln max_scale)), here from w = ln(scale) on.

    Args:
        scale: a constant that multiplies the cosine (the sharpness β of Graves et al., equation 5),
            or what learned scales start at: 10 in Swin v2.
        max_scale: None, or the largest value of learned scales: 100 in Swin v2.

    Raises:
        ValueError: with `max_scale`, either number is not above 0.

    >>> import keras
    >>> from keras_attention import scores
    >>> query = keras.ops.array([[[[3.0, 4.0]]]])                           # (B, T, H, K)
    >>> key = keras.ops.array([[[[3.0, 4.0]], [[-4.0, 3.0]]]])              # (B, S, H, K)
    >>> keras.ops.convert_to_numpy(scores.Cosine(scale=10.0)(query, key))[0, 0].round(2)
    array([[10.,  0.]], dtype=float32)
    """

    def __init__(self, scale: float = 1.0, max_scale: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.max_scale = shapes.check_optional_positive("max_scale", max_scale)
        check = shapes.check_number if max_scale is None else shapes.check_positive
        self.scale = self._factor = check("scale", scale)
        self._has_sizes = max_scale is not None

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        if self.max_scale is not None:
            start = keras.initializers.Constant(math.log(self.scale))
            self.log_scale = self.add_weight((query_shape[2],), start, name="log_scale")
            self._factor = 1.0

    def prepare_query(self, query: Tensor) -> Tensor:
        if self.max_scale is None:
            return unit(query)
        # `minimum` would round float64 on PyTorch, and fail on TensorFlow.
        scale = ops.clip(ops.exp(self.log_scale), 0.0, self.max_scale)
        return unit(query) * ops.cast(scale, query.dtype)[:, None]

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
        units: int | None = None,
        use_bias: bool = True,
        normalize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(use_bias=use_bias, **kwargs)
        self.units = shapes.check_optional_count("units", units)
        self.normalize = shapes.check_flag("normalize", normalize)

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
        self.units = shapes.check_optional_count("units", units)

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
        self.units = shapes.check_optional_count("units", units)
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


class Location(Learned):
    """score(q, k_s) = w_sᵀ q, with a vector for each key position s. Luong et al. 2015, equation 8.

    The query alone determines the position; the keys' content has no effect. `W` is
    (H, Kq, max_length), and keys use its first columns, or those of the `positions` of a call.
    A masked key gets no weight, as always. (The paper's softmax is the normalization slot.)

    Args:
        max_length: the largest number of keys. More raise an error: ValueError if their number is
            known statically, and otherwise an error of the backend.
        kernel_initializer, kernel_regularizer, kernel_constraint: of `W`.

    Raises:
        ValueError: `max_length` is not an integer of at least 1, or there are more keys, or
            positions beyond it: where their values are not known yet, the scores are NaN.

    >>> import keras
    >>> from keras_attention import Attention, scores
    >>> x, memory = keras.random.normal((2, 5, 8)), keras.random.normal((2, 7, 6))
    >>> Attention(score=scores.Location(max_length=10))(x, memory).shape
    (2, 5, 6)
    """

    needs_length = True

    def __init__(self, max_length: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.max_length = shapes.check_count("max_length", max_length)

    def build(self, query_shape, key_shape):
        self.check_length(key_shape[1])
        self.kernel = self.add_kernel("kernel", (*query_shape[2:], self.max_length))

    def prepare_query(self, query: Tensor) -> Tensor:
        return multiply("bthk,hku->bthu", query, self.kernel)

    def into_spec(self, spec, query, key, key_is_prepared=False):
        spec, query, key = super().into_spec(spec, query, key, key_is_prepared)
        at: Any = spec.positions
        if at is None or at.consecutive:
            return spec, query, key
        self.check_length(key.shape[1])
        known = shapes.visible_values(at.key)
        if known is not None and known.size and known.max() >= self.max_length:
            raise ValueError(
                f"Location has scores of positions below max_length={self.max_length}. "
                f"Received: positions of keys up to {known.max()}"
            )
        return spec.replace(score=functools.partial(self._compare_at, at.key)), query, key

    def _compare_at(self, positions, query, key):
        """Scores of keys at positions (S,) or (B, S); NaN beyond the last column."""
        batch, queries, heads, _ = backend.shape(query)
        positions = positions if len(positions.shape) == 2 else positions[None]
        positions = positions[:, None, None]
        index = ops.clip(positions, 0, self.max_length - 1)
        shape = (batch, heads, queries, backend.shape(key)[1])
        columns = ops.transpose(query, (0, 2, 1, 3))
        found = backend.take_last(columns, ops.broadcast_to(index, shape))
        return ops.where(positions < self.max_length, found, ops.cast(math.nan, found.dtype))

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        self.check_length(key.shape[1])
        return ops.transpose(backend.first(query, backend.shape(key)[1]), (0, 2, 1, 3))

    def check_length(self, keys):
        """Raises if there are surely more keys than the kernel has columns."""
        keys = backend.known_size(keys)
        if keys is not None and keys > self.max_length:
            raise ValueError(
                f"Location can score at most max_length={self.max_length} keys. Received: {keys}"
            )
