"""Scores: how well a key answers a query.

A score that is an inner product after each side has been prepared on its own (dot, cosine, general)
says only how: `prepare_query` and `prepare_key`, or `prepare` for both. Every kernel can run it. A
score that must see each pair overrides `compare`, after the same preparation, or simply `call`.
Scores are layers, so that they can own weights; they work in float32 whatever the dtype policy,
and are built by the attention layer that holds them.

A score of your own is a subclass with one method:

>>> import keras
>>> from keras_attention import scores
>>> @keras.saving.register_keras_serializable(package="my_package")
... class NegativeDistance(scores.Score):
...     def call(self, query, key):                                  # (B, T, H, K), (B, S, H, K)
...         difference = query[:, :, None] - key[:, None]            # (B, T, S, H, K)
...         distance = keras.ops.sum(keras.ops.square(difference), axis=-1)
...         return -keras.ops.transpose(distance, (0, 3, 1, 2))      # (B, H, T, S)
>>> import keras_attention
>>> x = keras.random.normal((2, 5, 8))
>>> keras_attention.Attention(score=NegativeDistance())([x, x]).shape
(2, 5, 8)
"""

import keras

from keras_attention import saving, shapes

ops = keras.ops


def full_precision():
    """Scores are computed in float32 in every policy, as softmax is; float64 stays float64."""
    return "float64" if keras.config.dtype_policy().compute_dtype == "float64" else "float32"


class Score(saving.ConfigurableLayer):
    """The base of all scores: an inner product of what `prepare` makes of query and key.

    Subclasses override `prepare_query(query)` and `prepare_key(key)` (or `prepare(query, key)` for
    both), which give the two sides of an inner product; or `call(query, key)`, which gives the
    scores (B, H, T, S) of the pairs themselves; or, to prepare each side once and then look at
    pairs, the first two and `compare(query, key)`. Keys may have fewer heads than queries where
    they are grouped: `compare` sees both with H heads, `prepare_key` sees (B, S, G, K). Weights are
    made in `build(query_shape, key_shape)`, where the shapes are (B, T, H, K) and (B, S, G, K).
    """

    # Whether query and key may have different numbers of features.
    unequal_sizes = False

    def __init__(self, **kwargs):
        kwargs["dtype"] = kwargs.get("dtype") or full_precision()
        super().__init__(**kwargs)

    def build(self, query_shape, key_shape):
        if not self.unequal_sizes:
            shapes.check_same(
                f"Numbers of features that {type(self).__name__} compares",
                query=query_shape[-1],
                key=key_shape[-1],
            )

    def factor(self, size):
        """What inner products of `size` features are multiplied by, by the kernel, in float32."""
        return 1.0

    def prepare(self, query, key):
        """Query (B, T, H, K) and key (B, S, H, K), each as it enters the comparison."""
        return self.prepare_query(query), self.prepare_key(key)

    def prepare_query(self, query):
        """What `prepare` makes of the query, on its own."""
        return query

    def prepare_key(self, key):
        """What `prepare` makes of the key, on its own: a decoder does it once for all its steps."""
        return key

    def compare(self, query, key):
        """Scores (B, H, T, S) of what `prepare` made; None is the inner product."""
        return None

    def as_kernel_arguments(self, query, key, key_is_prepared=False):
        """`query`, `key`, `score` and `scale` as `kernels.attend` takes them."""
        cls = type(self)
        if cls.call is not Score.call:
            return {"query": query, "key": key, "score": self}
        arguments = {"scale": self.factor(query.shape[-1])}
        if cls.compare is not Score.compare:
            arguments = {"score": self.compare}
        wide = shapes.accumulation_dtype(query, key)
        if key_is_prepared:
            query = self.prepare_query(ops.cast(query, wide))
        elif self.prepares:
            query, key = self.prepare(ops.cast(query, wide), ops.cast(key, wide))
        return {"query": query, "key": key, **arguments}

    @property
    def prepares(self):
        """Whether `prepare` changes anything."""
        return any(
            getattr(type(self), name) is not getattr(Score, name)
            for name in ("prepare", "prepare_query", "prepare_key")
        )

    def call(self, query, key):
        """Scores (B, H, T, S) of query (B, T, H, K) and key (B, S, H, K)."""
        factor = self.factor(query.shape[-1])
        query, key = self.prepare(query, key)
        if type(self).compare is not Score.compare:
            return self.compare(query, key)
        return ops.einsum("bthk,bshk->bhts", query * factor, key)

    def compute_output_shape(self, query_shape, key_shape):
        return (query_shape[0], query_shape[2], query_shape[1], key_shape[1])


@saving.register
class Dot(Score):
    """score(q, k) = qᵀ k. Luong et al. 2015, equation 8, "dot"."""


@saving.register
class ScaledDot(Score):
    """score(q, k) = qᵀ k / √K. Vaswani et al. 2017, equation 1.

    Args:
        scale: the factor, or None for 1/√K. It multiplies the query before the product is taken.
    """

    def __init__(self, scale=None, **kwargs):
        super().__init__(**kwargs)
        if scale is not None and not isinstance(scale, (int, float)):
            raise TypeError(f"`scale` must be a number or None. Received: scale={scale!r}")
        self.scale = scale

    def factor(self, size):
        return size**-0.5 if self.scale is None else self.scale


@saving.register
class Cosine(Score):
    """score(q, k) = qᵀ k / (‖q‖ ‖k‖). Graves et al. 2014 (Neural Turing Machines), equation 6.

    A vector of zeros has the score 0 with everything.

    Args:
        scale: a constant that multiplies the cosine (the sharpness β of Graves et al., equation 5).
    """

    def __init__(self, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(scale, (int, float)):
            raise TypeError(f"`scale` must be a number. Received: scale={scale!r}")
        self.scale = scale

    def factor(self, size):
        return self.scale

    def prepare_query(self, query):
        return _unit(query)

    def prepare_key(self, key):
        return _unit(key)


def _unit(vector):
    """`vector` at length 1, or 0 where it is 0; its gradient is finite in both cases."""
    # Dividing by the largest entry first keeps the squares of huge and tiny vectors in range.
    largest = ops.max(ops.abs(vector), axis=-1, keepdims=True)
    vector = vector / ops.stop_gradient(ops.where(largest > 0, largest, ops.ones_like(largest)))
    squares = ops.sum(ops.square(vector), axis=-1, keepdims=True)
    return vector * ops.rsqrt(ops.where(squares > 0, squares, ops.ones_like(squares)))


@saving.register
class General(Score):
    """score(q, k) = qᵀ W k. Luong et al. 2015, equation 8, "general".

    `W` is (H, Kq, Kk), one matrix a head, so that query and key may differ in size.

    Args:
        kernel_initializer, kernel_regularizer, kernel_constraint: of `W`.
    """

    unequal_sizes = True

    def __init__(
        self,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def build(self, query_shape, key_shape):
        self.kernel = self.add_weight(
            name="kernel",
            shape=(query_shape[2], query_shape[-1], key_shape[-1]),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    def prepare_query(self, query):
        return ops.einsum("bthk,hkj->bthj", query, ops.cast(self.kernel, query.dtype))


BUILTIN = {"dot": Dot, "scaled_dot": ScaledDot, "cosine": Cosine, "general": General}


def get(score):
    """The score that `score` names: a score, its saved config, or a string such as "cosine"."""
    return saving.slot("score", Score, BUILTIN, score)
