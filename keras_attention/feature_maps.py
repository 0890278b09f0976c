"""Feature maps of linear attention, as scores: φ(query) · φ(key), never negative."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention import normalizations, saving
from keras_attention.backend import backend
from keras_attention.core.hints import Tensor
from keras_attention.kernels.linear_time import recurrence
from keras_attention.scores import Score
from keras_attention.sequences import shapes

__all__ = ["EluFeatures", "RandomFeatures", "ReluFeatures", "get"]


class EluFeatures(Score):
    """`φ(x) = elu(x) + 1` (Katharopoulos et al. 2020, equation 7), elements alone.

    >>> import keras
    >>> from keras_attention import feature_maps
    >>> features = feature_maps.EluFeatures().prepare_query(keras.ops.array([-1.0, 0.0, 2.0]))
    >>> [round(float(x), 3) for x in features]
    [0.368, 1.0, 3.0]
    """

    def features(self, size: int) -> int:
        """The number of features of φ, of heads of `size`."""
        return size

    def prepare_query(self, query: Tensor) -> Tensor:
        return ops.elu(query) + 1.0

    def prepare_key(self, key: Tensor) -> Tensor:
        return self.prepare_query(key)


class DrawnFeatures(Score, saved=False):
    """The base of features of m random vectors ω, a weight that is not trained."""

    def __init__(
        self,
        num_features: int = 256,
        seed: int | None = None,
        redraw_every: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_features = shapes.check_count("num_features", num_features)
        self.seed = shapes.check_seed("seed", seed)
        self.redraw_every = shapes.check_optional_count("redraw_every", redraw_every)

    def features(self, size: int) -> int:
        return self.num_features

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        shape = (query_shape[-1], self.num_features)
        self.vectors = self.add_weight(shape, self._drawn, trainable=False, name="vectors")
        if self.redraw_every is not None:
            self.age = self.add_weight((), "zeros", dtype="int32", trainable=False, name="age")
            self._seed_generator = keras.random.SeedGenerator(self.seed)

    def redraw(self, seed: int | None = None) -> None:
        """Draws the vectors anew, of a layer that is built.

        On JAX, `fit` has weights of its own while it runs, so that this is for before or after it.
        A cache has sums of features of the former vectors.

        Args:
            seed: of the vectors; None for one that `keras.utils.set_random_seed` determines.

        Raises:
            ValueError: the seed is not an integer, or the layer has not been called.
        """
        seed = shapes.check_seed("seed", seed)
        vectors = saving.check_built("feature_map", self).vectors
        vectors.assign(self._drawn(vectors.shape, vectors.dtype, seed))
        if self.redraw_every is not None:
            self.age.assign(0)

    def count_call(self):
        """Counts a call in training, before which vectors of `redraw_every` calls are drawn anew.

        It is computed with the call, so that a compiled step has it too.
        """
        if self.redraw_every is None:
            return
        due = self.age >= self.redraw_every
        self.age.assign(ops.where(due, 1, self.age + 1))
        size, count = self.vectors.shape
        shape, dtype = (size * -(-count // size) + count, size), self.vectors.dtype
        # Outside of the condition: JAX has no seed that advances within.
        numbers = keras.random.normal(shape, dtype=dtype, seed=self._seed_generator)
        squares = ops.reshape(numbers[:-count], (-1, size, size))
        self.vectors.assign(
            backend.cond(
                due,
                lambda: _orthogonal(ops, squares, numbers[-count:]),
                lambda: ops.copy(ops.convert_to_tensor(self.vectors)),
            )
        )

    def _drawn(self, shape, dtype=None, seed=None):
        # Keras draws the seed of an initializer without one, by `keras.utils.set_random_seed`.
        seed = self.seed if seed is None else seed
        rng = np.random.default_rng(keras.initializers.RandomNormal(seed=seed).seed)
        size, count = shape
        squares = rng.normal(size=(-(-count // size), size, size))
        vectors = _orthogonal(np, squares, rng.normal(size=(count, size)))
        return ops.convert_to_tensor(vectors, dtype)

    def products(self, x: Tensor) -> Tensor:
        """ω · x, (B, T, H, m), of heads (B, T, H, K)."""
        sizes = {"of the vectors": self.vectors.shape[0], "of a head": x.shape[-1]}
        shapes.check_same("Features, in layers that share feature maps,", **sizes)
        # A copy: PyTorch would compute gradients with vectors that another layer has drawn since.
        vectors = ops.copy(ops.cast(ops.convert_to_tensor(self.vectors), x.dtype))
        return ops.einsum("bthk,kn->bthn", x, vectors)


class RandomFeatures(DrawnFeatures):
    r"""Positive orthogonal random features, whose products estimate exp(q · k / √K).

    `φ(x) = exp(ω · x' − |x'|² / 2) / √m` with `x' = x / K^¼`, for each of m vectors ω
    (Choromanski et al. 2021, FAVOR+, equation 5). The vectors are orthogonal in groups of K, of
    the lengths of normal ones, and a weight that is not trained. `LinearAttention` computes with
    the exponents, so that keys of any length have weights and gradients. Its cache has `"largest"`
    beside `"state"`, (B, G, m), the largest exponent so far of each feature, by which sums are
    divided. Only with an `attention_bias` exponents of keys are clipped at ±80.

    Args:
        num_features: m.
        seed: of the vectors; None draws others for each layer.
        redraw_every: the number of training calls without a cache after which the vectors are drawn
            anew, before the next, also within a compiled `fit`; a weight counts calls. None to keep
            them. `redraw(seed)` draws them by hand.

    Raises:
        ValueError: an argument is not as described.

    >>> import keras, keras_attention
    >>> features = keras_attention.feature_maps.RandomFeatures(64, seed=0, redraw_every=1000)
    >>> layer = keras_attention.LinearAttention(4, 8, feature_map=features)
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    """

    def prepare_query(self, query: Tensor) -> Tensor:
        """The features (B, T, H, m), each query's divided by the largest of them."""
        # A factor of a query changes none of its weights.
        return _divided_by_largest(self.exponents(query), axis=-1)

    def prepare_key(self, key: Tensor) -> Tensor:
        """The features (B, S, H, m), those of all keys divided by the largest of them.

        So they are of whole sequences without padding: `LinearAttention` takes `exponents` instead.
        """
        return _divided_by_largest(self.exponents(key), axis=(1, 3))

    def into_spec(self, spec, query, key, key_is_prepared=False):
        # Weights that are divided by their sum, of features that may be beyond any float: the
        # softmax of the logarithms of products.
        owner = getattr(spec.normalization, "__self__", None)
        if key_is_prepared or not isinstance(owner, SumToOne):
            return super().into_spec(spec, query, key, key_is_prepared)
        wide = shapes.accumulation_dtype(query, key)
        query, key = (self.exponents(ops.cast(x, wide)) for x in (query, key))
        if not spec.biases:
            return spec.replace(score=_logarithms, normalization=None), query, key
        # A bias is added to products, whose factors cannot be chosen then.
        query = _divided_by_largest(query, axis=-1)
        return spec, query, ops.exp(ops.clip(key, -80.0, 80.0))

    def exponents(self, x: Tensor) -> Tensor:
        """The logarithms of the features of queries or keys (B, T, H, K), and of √m."""
        x = x * x.shape[-1] ** -0.25
        squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
        return self.products(x) - 0.5 * squares


class ReluFeatures(DrawnFeatures):
    """Features of generalized attention, `φ(x) = relu(ω · x) / √m + ε`, for m vectors ω.

    The best models of proteins of Choromanski et al. 2021 have them. Their products are no estimate
    of softmax. The vectors, and all other arguments and errors, are those of
    `RandomFeatures`.

    Args:
        epsilon: ε, above 0, which gives each key a weight.

    >>> import keras, keras_attention
    >>> layer = keras_attention.LinearAttention(4, 8, feature_map="relu")
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    """

    def __init__(
        self,
        num_features: int = 256,
        seed: int | None = None,
        redraw_every: int | None = None,
        epsilon: float = 1e-3,
        **kwargs: Any,
    ):
        super().__init__(num_features, seed, redraw_every, **kwargs)
        self.epsilon = shapes.check_positive("epsilon", epsilon)

    def prepare_query(self, query: Tensor) -> Tensor:
        return ops.relu(self.products(query)) * self.num_features**-0.5 + self.epsilon

    def prepare_key(self, key: Tensor) -> Tensor:
        return self.prepare_query(key)


def _orthogonal(xp, squares, rows):
    """Vectors (K, m), orthogonal in groups of K: of normal numbers (⌈m/K⌉, K, K) and (m, K).

    `xp` is NumPy or `keras.ops`.
    """
    columns, triangles = xp.linalg.qr(squares)
    # Without these signs the first elements would all be negative.
    columns = columns * xp.sign(xp.diagonal(triangles, axis1=1, axis2=2))[:, None]
    count, size = rows.shape
    vectors = xp.reshape(xp.transpose(columns, (1, 0, 2)), (size, -1))[:, :count]
    return vectors * xp.linalg.norm(rows, axis=1)


def _divided_by_largest(exponents, axis):
    """exp of exponents, divided by that of the largest along axes."""
    largest = ops.max(exponents, axis=axis, keepdims=True, initial=-np.inf)
    return ops.exp(exponents - ops.stop_gradient(largest))


def _logarithms(query, key):
    """Scores (B, H, T, S): logarithms of the products of exp(query) and exp(key)."""
    return recurrence.logarithms(*(ops.swapaxes(x, 1, 2) for x in (query, key)))


BUILTIN = {"elu": EluFeatures, "favor": RandomFeatures, "relu": ReluFeatures}


def get(feature_map: Any) -> Score:
    """The feature map that the argument names: an object, its saved config, or a string.

    Args:
        feature_map: "elu", "favor", "relu", a config, or a `scores.Score` whose `prepare_query` and
            `prepare_key` give features that are never negative, as many as `features(size)` says.

    Raises:
        ValueError, TypeError: it is none of these.

    >>> from keras_attention import feature_maps
    >>> type(feature_maps.get("favor")).__name__
    'RandomFeatures'
    """
    found = saving.slot("feature_map", Score, BUILTIN, feature_map)
    if not found.prepares_apart or found.compares_pairs or not hasattr(found, "features"):
        raise ValueError(
            "A feature map is a `scores.Score` with `prepare_query`, `prepare_key` and "
            f"`features(size)`, and no other method of comparing. Received: feature_map={found!r}"
        )
    return found


class SumToOne(normalizations.Normalization, saved=False):
    """weight_s = score_s / Σ score, of scores that are not negative; 0 if all are 0."""

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None:
            scores = ops.where(mask, scores, ops.zeros_like(scores))
        return divided(scores, ops.sum(scores, axis=-1, keepdims=True))


def divided(array: Tensor, total: Tensor) -> Tensor:
    """`array / total`, and 0 where the total is."""
    total = ops.where(total > 0, total, ops.ones_like(total))
    # Of about 1: JAX's gradient divides by the square of a total, which may be too small for that.
    inverse = ops.stop_gradient(1 / total)
    return (array * inverse) / (total * inverse)
