"""Feature maps of linear attention, as scores: φ(query) · φ(key), never negative."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention import normalizations, saving
from keras_attention.core.hints import Tensor
from keras_attention.kernels.linear_time import recurrence
from keras_attention.scores import Score
from keras_attention.sequences import shapes

__all__ = ["EluFeatures", "RandomFeatures", "get"]


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


class RandomFeatures(Score):
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

    Raises:
        ValueError: an argument is not as described.

    >>> import keras, keras_attention
    >>> features = keras_attention.feature_maps.RandomFeatures(64, seed=0)
    >>> layer = keras_attention.LinearAttention(4, 8, feature_map=features)
    >>> layer(keras.random.normal((2, 5, 32))).shape
    (2, 5, 32)
    """

    def __init__(self, num_features: int = 256, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_features = shapes.check_count("num_features", num_features)
        self.seed = shapes.check_seed("seed", seed)

    def features(self, size: int) -> int:
        return self.num_features

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        shape = (query_shape[-1], self.num_features)
        self.vectors = self.add_weight(shape, self._drawn, trainable=False, name="vectors")

    def _drawn(self, shape, dtype=None):
        # Keras draws the seed of an initializer without one, by `keras.utils.set_random_seed`.
        rng = np.random.default_rng(keras.initializers.RandomNormal(seed=self.seed).seed)
        size, count = shape
        groups = []
        for _ in range(-(-count // size)):
            columns, triangle = np.linalg.qr(rng.normal(size=(size, size)))
            # Without these signs the first elements would all be negative.
            groups.append(columns * np.sign(np.diag(triangle)))
        lengths = np.linalg.norm(rng.normal(size=(count, size)), axis=1)
        vectors = np.concatenate(groups, axis=1)[:, :count] * lengths
        return ops.convert_to_tensor(vectors, dtype)

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
        sizes = {"of the vectors": self.vectors.shape[0], "of a head": x.shape[-1]}
        shapes.check_same("Features, in layers that share a RandomFeatures,", **sizes)
        x = x * x.shape[-1] ** -0.25
        squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
        vectors = ops.cast(ops.convert_to_tensor(self.vectors), x.dtype)
        return ops.einsum("bthk,kn->bthn", x, vectors) - 0.5 * squares


def _divided_by_largest(exponents, axis):
    """exp of exponents, divided by that of the largest along axes."""
    largest = ops.max(exponents, axis=axis, keepdims=True, initial=-np.inf)
    return ops.exp(exponents - ops.stop_gradient(largest))


def _logarithms(query, key):
    """Scores (B, H, T, S): logarithms of the products of exp(query) and exp(key)."""
    return recurrence.logarithms(*(ops.swapaxes(x, 1, 2) for x in (query, key)))


BUILTIN = {"elu": EluFeatures, "favor": RandomFeatures}


def get(feature_map: Any) -> Score:
    """The feature map that the argument names: an object, its saved config, or a string.

    Args:
        feature_map: "elu", "favor", a config, or a `scores.Score` whose `prepare_query` and
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
