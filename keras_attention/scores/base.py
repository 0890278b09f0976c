"""The base of scores: preparing each side, then comparing."""

from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core.hints import Constraint, Initializer, Regularizer, Tensor
from keras_attention.kernels import semantics
from keras_attention.sequences import shapes
from keras_attention.spec import AttentionSpec


def full_precision() -> str:
    """Scores are computed in float32 in every policy, as softmax is; float64 stays float64.

    >>> from keras_attention import scores
    >>> scores.full_precision()
    'float32'
    """
    return shapes.full_precision(keras.config.dtype_policy().compute_dtype)


# The methods that define a score: a subclass overrides one of them or more.
_PREPARING = {"prepare", "prepare_query", "prepare_key"}
_DEFINING = {"call", "compare", "factor", "_factor", "into_spec"} | _PREPARING


class Score(saving.ConfigurableLayer, saved=False):
    """The base of all scores: an inner product of prepared queries and keys.

    Subclasses override `prepare_query(query)` and `prepare_key(key)` (or `prepare(query, key)` for
    both), which return the two sides of an inner product; or `call(query, key)`, which returns the
    scores (B, H, T, S) of pairs; or, to prepare each side once and then compare
    pairs, the first two and `compare(query, key)`. Grouped keys have fewer heads than queries:
    `compare` gets both with H heads, `prepare_key` gets (B, S, G, K). Create weights in
    `build(query_shape, key_shape)`, where the shapes are (B, T, H, K) and (B, S, G, K).

    >>> import keras
    >>> from keras_attention import SelfAttention, scores
    >>> @keras.saving.register_keras_serializable(package="my_package")
    ... class Positive(scores.Score):
    ...     def prepare_query(self, query):
    ...         return keras.ops.relu(query)
    ...     def prepare_key(self, key):
    ...         return keras.ops.relu(key)
    >>> SelfAttention(2, 4, score=Positive())(keras.random.normal((2, 5, 8))).shape
    (2, 5, 8)
    """

    _has_own_dtype = True
    # Whether query and key may have different numbers of features.
    unequal_sizes = False
    # Whether the scores of a key depend on the number of keys.
    needs_length = False
    # What inner products are multiplied by, or None for 1 / √K.
    _factor: float | None = 1.0
    # Whether it has weights for numbers of heads and features, which layers must then share, and
    # those (heads, features) of the query and the key that it served first.
    _has_sizes = False
    _sizes: tuple | None = None
    # Whether it is a class of this package, so that a position knows whether it supports it.
    built_in = False
    # The defining methods that a class overrides, whether it prepares queries or keys, and whether
    # it compares them by more than an inner product, by `__init_subclass__`.
    _overridden: frozenset[str] = frozenset()
    prepares = compares_pairs = False

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls.built_in = cls.__module__.startswith("keras_attention.")
        owned = set().union(*map(vars, cls.__mro__[: cls.__mro__.index(Score)]))
        cls._overridden = frozenset(owned.intersection(_DEFINING))
        cls.prepares = bool(cls._overridden & _PREPARING)
        cls.compares_pairs = "compare" in cls._overridden

    def __init__(self, **kwargs: Any):
        if not self._overridden:
            raise TypeError(
                f"{type(self).__name__} must implement `call(self, query, key)`, or "
                "`prepare_query(self, query)` and `prepare_key(self, key)`. Received: a score with "
                "none of them"
            )
        super().__init__(**kwargs)

    def build(self, query_shape, key_shape):
        if not self.unequal_sizes:
            what = f"Numbers of features that {type(self).__name__} compares"
            shapes.check_same(what, query=query_shape[-1], key=key_shape[-1])

    def factor(self, size: int) -> float:
        """The multiplier of inner products of `size` features, applied by the kernel in float32."""
        return size**-0.5 if self._factor is None else self._factor

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query (B, T, H, K) and key (B, S, H, K), prepared for comparison."""
        return self.prepare_query(query), self.prepare_key(key)

    def prepare_query(self, query: Tensor) -> Tensor:
        """The prepared query."""
        return query

    def prepare_key(self, key: Tensor) -> Tensor:
        """The prepared key: a decoder computes it once for all its steps."""
        return key

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores (B, H, T, S) of prepared queries and keys: inner products, unless overridden."""
        return ops.einsum("bthk,bshk->bhts", query * self.factor(query.shape[-1]), key)

    def _check_sizes(self, query, key):
        """Raises unless these are the sizes that its weights were made for."""
        sizes = tuple(query.shape[2:]), tuple(key.shape[2:])
        if self._sizes is None:
            self._sizes = sizes
        if sizes != self._sizes:
            raise ValueError(
                f"Layers sharing a {type(self).__name__} need equal sizes. Query and key had "
                f"(heads, features) {self._sizes}. Received: {sizes}"
            )

    def check_length(self, keys):
        """Raises if a score that `needs_length` has none of so many keys; None if unknown."""

    def into_spec(
        self, spec: AttentionSpec, query: Tensor, key: Tensor, key_is_prepared: bool = False
    ) -> tuple[AttentionSpec, Tensor, Tensor]:
        """The `AttentionSpec` with this score, and query and key prepared for the kernel."""
        if self._has_sizes and not key_is_prepared:
            self._check_sizes(query, key)
        if "call" in self._overridden:
            return spec.replace(score=self), query, key
        if self.compares_pairs:
            spec = spec.replace(score=self.compare)
        else:
            spec = spec.replace(scale=self.factor(query.shape[-1]))
        wide = shapes.accumulation_dtype(query, key)
        if key_is_prepared:
            query = self.prepare_query(ops.cast(query, wide))
        elif self.prepares:
            query, key = self.prepare(ops.cast(query, wide), ops.cast(key, wide))
        if query is None or key is None:
            raise TypeError(
                f"{type(self).__name__} must return what it makes of query and key. Received: "
                f"None, from `{'prepare_query' if query is None else 'prepare_key'}` or `prepare`"
            )
        return spec, query, key

    @property
    def prepares_apart(self) -> bool:
        """Whether a prepared key does not depend on the query, so that all queries may share it."""
        return not self._overridden & {"call", "prepare"}

    def call(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores (B, H, T, S) of query (B, T, H, K) and key (B, S, H, K)."""
        factor = self.factor(query.shape[-1])
        query, key = self.prepare(query, key)
        if self.compares_pairs:
            return self.compare(query, key)
        return ops.einsum("bthk,bshk->bhts", query * factor, key)

    def compute_output_shape(self, query_shape, key_shape):
        return (query_shape[0], query_shape[2], query_shape[1], key_shape[1])


class Learned(Score, saved=False):
    """The base of scores with weights that multiply."""

    # Weights allow different numbers of features.
    unequal_sizes = _has_sizes = True

    def __init__(
        self,
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._keep_options("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)

    def add_kernel(self, name, shape):
        """A weight that multiplies, (heads, ...)."""
        return self._add_weight("kernel", shape, name=name)


class LearnedWithBias(Learned, saved=False):
    """The base of scores with weights that multiply and, by `use_bias`, weights that add."""

    def __init__(
        self,
        use_bias: bool = True,
        *,
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_initializer: Initializer = "zeros",
        bias_regularizer: Regularizer | None = None,
        bias_constraint: Constraint | None = None,
        **kwargs: Any,
    ):
        super().__init__(kernel_initializer, kernel_regularizer, kernel_constraint, **kwargs)
        self.use_bias = shapes.check_flag("use_bias", use_bias)
        self._keep_options("bias", bias_initializer, bias_regularizer, bias_constraint)

    def add_bias(self, shape):
        """A weight that adds, (heads, ...), or None without `use_bias`."""
        if not self.use_bias:
            return None
        return self._add_weight("bias", shape, name="bias")


def multiply(equation, array, kernel):
    """The product of an array and a weight by einsum, finite for all values of the array."""
    array = semantics.finite(array)
    return ops.einsum(equation, array, ops.cast(kernel, array.dtype))


def unit(vector, epsilon=0.0):
    """`vector / √(|vector|² + ε)`, or 0 where it is 0; its gradient is finite in both cases."""
    if 0 in vector.shape:
        return vector
    # Dividing by the largest entry first keeps the squares of huge and tiny vectors in range. Of
    # those below 1, ε does.
    largest = ops.max(ops.abs(vector), axis=-1, keepdims=True)
    divided = largest > (1.0 if epsilon else 0.0)
    divisor = ops.stop_gradient(ops.where(divided, largest, ops.ones_like(largest)))
    vector = vector / divisor
    squares = ops.sum(ops.square(vector), axis=-1, keepdims=True)
    if epsilon:
        squares = squares + ops.square(epsilon**0.5 / divisor)
    return vector * ops.rsqrt(ops.where(squares > 0, squares, ops.ones_like(squares)))
