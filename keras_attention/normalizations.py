"""Normalizations: from scores to weights. Every kernel implements softmax."""

import math
from typing import Any, Literal, TypeAlias, get_args

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core.hints import Config, Seed, Tensor
from keras_attention.kernels import entmax, semantics
from keras_attention.sequences import shapes
from keras_attention.sequences.sizes import known
from keras_attention.spec import AttentionSpec, ElementwiseNormalization, RowNormalization

__all__ = [
    "AdaptiveEntmax",
    "Entmax",
    "Hard",
    "Normalization",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "TopK",
    "get",
]

Gradient = Literal["straight_through", "reinforce"]
GRADIENTS = get_args(Gradient)


class Normalization(saving.Configurable, saved=False):
    """Turns scores into weights over the last axis. Subclasses implement `normalize`.

    It gets the float32 scores (masked ones hugely negative) and the boolean mask (or None), both
    broadcasting to (B, H, T, S); the kernel then sets the weights of masked keys to exactly zero.

    >>> import keras
    >>> from keras_attention import Attention, normalizations
    >>> @keras.saving.register_keras_serializable(package="my_package")
    ... class Even(normalizations.Normalization):
    ...     def normalize(self, scores, mask):
    ...         return keras.ops.ones_like(scores) / keras.ops.shape(scores)[-1]
    >>> x = keras.random.normal((1, 4, 8))
    >>> _, weights = Attention(normalization=Even())(x, return_attention_scores=True)
    >>> keras.ops.convert_to_numpy(weights[0, 0, 0])
    array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """

    # Whether training draws random numbers: the layer then has a seed for it.
    random = False
    # Whether it has the log-probability of a choice, without which it has no gradient.
    has_log_probability = False
    # Whether it is the softmax that kernels compute themselves, where the specification has no
    # normalization; and whether a sink may take part, as one more key.
    of_kernels = takes_sink = False
    # Whether it has all its weights: those of one that is a layer are made in its `build`.
    built = True

    def build(self, query_shape, key_shape):
        """Creates the weights of one that is a layer, for (B, T, H, K) and (B, S, G, K)."""

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Weights of the same shape as `scores`."""
        raise TypeError(f"{type(self).__name__} must implement `normalize(self, scores, mask)`.")

    def into_spec(
        self, spec: AttentionSpec, training: bool | None = False, seed: Seed = None
    ) -> AttentionSpec:
        """The `AttentionSpec` with this normalization."""
        return spec.replace(normalization=self.normalize)


class Softmax(Normalization):
    """weight_s = exp(score_s) / Σ exp(score): positive, with sum one.

    >>> import keras
    >>> from keras_attention import normalizations
    >>> scores = keras.ops.array([2.0, 1.5, 0.0])
    >>> keras.ops.convert_to_numpy(normalizations.Softmax().normalize(scores, None)).round(2)
    array([0.57, 0.35, 0.08], dtype=float32)
    """

    of_kernels = takes_sink = True

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return ops.softmax(scores, axis=-1)


class Sigmoid(Normalization):
    """weight_s = 1 / (1 + exp(−score_s)): each key independently, without competition.

    >>> import keras
    >>> from keras_attention import normalizations
    >>> scores = keras.ops.array([2.0, 1.5, 0.0])
    >>> keras.ops.convert_to_numpy(normalizations.Sigmoid().normalize(scores, None)).round(2)
    array([0.88, 0.82, 0.5 ], dtype=float32)
    """

    def into_spec(self, spec, training=False, seed=None):
        elementwise = ElementwiseNormalization(ops.sigmoid, lambda weights: weights * (1 - weights))
        return spec.replace(normalization=elementwise)

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return ops.sigmoid(scores)


class _RowWise(Normalization, saved=False):
    """α-entmax of one α, or another normalization with the gradient of one, by `_slope`."""

    alpha: float

    def into_spec(self, spec, training=False, seed=None):
        return spec.replace(normalization=RowNormalization(self.normalize, self._slope))

    def _slope(self, weights):
        """That of `RowNormalization`: P^(2 − α) of weights P > 0, else 0."""
        if self.alpha == 1:
            return weights
        some = weights > 0
        # The power of 0 has no gradient, for second derivatives.
        inside = ops.where(some, weights, ops.ones_like(weights))
        return ops.where(some, ops.power(inside, 2.0 - self.alpha), ops.zeros_like(weights))

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        if self.alpha == 2:
            return entmax.sparsemax(scores, mask)
        if self.alpha == 1.5:
            return entmax.entmax15(scores, mask)
        return entmax.entmax(scores, self.alpha, mask)


class Sparsemax(_RowWise):
    """The nearest point of the simplex to the scores (Martins & Astudillo 2016, equation 2).

    `weight_s = max(score_s − τ, 0)`, with τ such that the weights sum to one. Weights of low scores
    are exactly zero. It sorts the scores, which costs more than softmax.

    >>> import keras
    >>> from keras_attention import normalizations
    >>> scores = keras.ops.array([2.0, 1.5, 0.0])
    >>> keras.ops.convert_to_numpy(normalizations.Sparsemax().normalize(scores, None)).round(2)
    array([0.75, 0.25, 0.  ], dtype=float32)
    """

    alpha = 2


class Entmax(_RowWise):
    """α-entmax, sparse weights between softmax and sparsemax. Peters et al. 2019, equation 10.

    `weight_s = max(0, (α − 1) score_s − τ)^(1 / (α − 1))`, with τ such that the weights sum to one.
    The larger α, the more weights are exactly zero. With the default, 1.5, τ is found by sorting,
    exactly; with 2 it is `Sparsemax`; with others, by Newton's method, to the rounding of float32.

    Args:
        alpha: α, from 1.01 to 2. Softmax is the limit 1.

    Raises:
        ValueError: `alpha` is not such a number.

    >>> import keras
    >>> from keras_attention import normalizations
    >>> scores = keras.ops.array([2.0, 1.5, 0.0])
    >>> keras.ops.convert_to_numpy(normalizations.Entmax().normalize(scores, None)).round(2)
    array([0.67, 0.33, 0.  ], dtype=float32)
    """

    def __init__(self, alpha: float = 1.5):
        self.alpha = _check_alpha(alpha)


class AdaptiveEntmax(saving.ConfigurableLayer, Normalization):
    """α-entmax whose α each head learns. Correia et al. 2019, "Adaptively Sparse Transformers".

    The weights of `Entmax` with `α_h = 1.01 + 0.99 · sigmoid(a_h)` for head h, between softmax and
    sparsemax; the paper has 1 + sigmoid. The gradient of α is exact (proposition 1). It is a Keras
    layer, for it has weights.

    Args:
        alpha: the first α of all heads, above 1.01 and below 2.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: `alpha` is not such a number, or layers with different numbers of heads share
            it.

    >>> import keras
    >>> from keras_attention import SelfAttention
    >>> layer = SelfAttention(2, 4, normalization="adaptive_entmax")
    >>> layer(keras.random.normal((2, 5, 8))).shape
    (2, 5, 8)
    >>> keras.ops.convert_to_numpy(layer.normalization.alphas()).round(3)
    array([1.5, 1.5], dtype=float32)
    """

    _has_own_dtype = True
    # Layers are equal only to themselves.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, alpha: float = 1.5, **kwargs: Any):
        super().__init__(**kwargs)
        self.alpha = _check_alpha(alpha, open_end=True)

    def build(self, query_shape, key_shape):
        share = (self.alpha - _LEAST_ALPHA) / (2 - _LEAST_ALPHA)
        first = keras.initializers.Constant(math.log(share / (1 - share)))
        self.logits = self.add_weight((query_shape[2],), first, name="logits")

    def alphas(self) -> Tensor:
        """The α of each head, (H,)."""
        return _LEAST_ALPHA + (2 - _LEAST_ALPHA) * ops.sigmoid(self.logits)

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        sizes = {"built": self.logits.shape[0], "received": scores.shape[1]}
        shapes.check_same("Heads of layers that share an AdaptiveEntmax", **sizes)
        return entmax.entmax(scores, self.alphas()[:, None, None], mask)


# Below it, 1 / (α − 1) would magnify the rounding of float32.
_LEAST_ALPHA = 1.01


def _check_alpha(alpha, open_end=False):
    alpha = shapes.check_number("alpha", alpha)
    if not (_LEAST_ALPHA < alpha < 2 if open_end else _LEAST_ALPHA <= alpha <= 2):
        raise ValueError(
            f"`alpha` must be {'above' if open_end else 'at least'} {_LEAST_ALPHA} and "
            f"{'below' if open_end else 'at most'} 2: 1 is 'softmax', and 2 is 'sparsemax'. "
            f"Received: alpha={alpha}"
        )
    return alpha


class TopK(_RowWise):
    """Softmax over the k largest scores of a query. Gupta et al. 2021, section 2.

    `weight_s = exp(score_s) / Σ exp(score)` over the keys whose score is at least the k-th largest,
    and exactly zero for others. Equal scores are treated alike: those equal to the k-th are all
    kept, so that there may be more than k.

    Args:
        k: number of keys; with no more than k of them it is softmax.

    Raises:
        ValueError: `k` is no integer of at least 1.

    >>> import keras
    >>> from keras_attention import normalizations
    >>> scores = keras.ops.array([2.0, 1.5, 0.0])
    >>> keras.ops.convert_to_numpy(normalizations.TopK(2).normalize(scores, None)).round(2)
    array([0.62, 0.38, 0.  ], dtype=float32)
    """

    # It is softmax of some of the scores.
    alpha = 1

    def __init__(self, k: int):
        self.k = shapes.check_count("k", k)

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        length, scores = scores.shape[-1], semantics.masked(scores, mask)
        if known(length) and length <= self.k:
            return ops.softmax(scores, axis=-1)
        padded = ops.stop_gradient(scores)
        if not known(length):
            # There may be fewer than k at run time.
            widths = [(0, 0)] * (len(scores.shape) - 1) + [(0, self.k)]
            padded = ops.pad(padded, widths, constant_values=semantics.MASKED)
        largest, _ = ops.top_k(padded, self.k)
        return ops.softmax(semantics.masked(scores, scores >= largest[..., -1:]), axis=-1)


class Hard(Normalization):
    r"""All weight on one key (Xu et al. 2015, section 4.1): a sample in training, else the best.

    In training the key is sampled from softmax(score), by the Gumbel trick; at inference it is the
    one with the largest score, the first of equal ones.

    Args:
        gradient: replaces the missing gradient of the choice. "straight_through":
            that of softmax((score + Gumbel noise) / temperature) (Jang et al. 2017, section 2.2);
            biased, but needs no other loss.
            "reinforce": none; the log-probability of the choice is returned for a
            `ReinforceLoss`, unbiased and noisy. Only `HardAttention` returns it.
        temperature: of the straight-through gradient; the lower, the less biased and the noisier.

    >>> import keras
    >>> from keras_attention import normalizations
    >>> scores = keras.ops.array([2.0, 1.5, 0.0])
    >>> keras.ops.convert_to_numpy(normalizations.Hard().normalize(scores, None)).round(2)
    array([1., 0., 0.], dtype=float32)
    """

    random = True

    def __init__(self, gradient: Gradient = "straight_through", temperature: float = 1.0):
        self.gradient = shapes.check_choice("gradient", gradient, GRADIENTS)
        self.temperature = shapes.check_positive("temperature", temperature)

    @property
    def has_log_probability(self) -> bool:  # type: ignore[override]
        """Whether the gradient is "reinforce"."""
        return self.gradient == "reinforce"

    def normalize(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        return _one_hot(scores)

    def into_spec(self, spec, training=False, seed=None):
        seed = seed if training else None
        return spec.replace(normalization=lambda scores, mask: self._choose(scores, mask, seed))

    def _choose(self, scores, mask, seed):
        """The choice; for "reinforce" also its log-probability, (B, H, T), with its gradient."""
        drawn = scores
        if seed is not None:
            # With Gumbel's noise, the largest score is a draw by softmax.
            uniform = keras.random.uniform(ops.shape(scores), 1e-20, 1.0, scores.dtype, seed)
            drawn = scores - ops.log(-ops.log(uniform))
        chosen = ops.stop_gradient(_one_hot(drawn))
        if self.gradient == "reinforce":
            likely = ops.log_softmax(scores, axis=-1)
            of_chosen = chosen > 0 if mask is None else ops.logical_and(chosen > 0, mask)
            return chosen, ops.sum(ops.where(of_chosen, likely, ops.zeros_like(likely)), axis=-1)
        if seed is None:
            return chosen
        soft = ops.softmax(drawn / self.temperature, axis=-1)
        return chosen + (soft - ops.stop_gradient(soft))


def _one_hot(scores):
    """One at the first of the largest scores of each row, zero elsewhere."""
    if 0 in scores.shape:
        return ops.zeros_like(scores)
    padded = scores
    if scores.shape[-1] is None:
        # There may be no key at run time, and TensorFlow has no maximum of an empty array.
        widths = [(0, 0)] * (len(scores.shape) - 1) + [(0, 1)]
        padded = ops.pad(scores, widths, constant_values=-float("inf"))
    largest = ops.expand_dims(backend.argmax(padded), -1)
    indices = ops.arange(ops.shape(scores)[-1], dtype=largest.dtype)
    return ops.cast(ops.equal(indices, largest), scores.dtype)


BUILTIN = {
    "softmax": Softmax,
    "sigmoid": Sigmoid,
    "sparsemax": Sparsemax,
    "entmax": Entmax,
    "entmax15": Entmax,
    "adaptive_entmax": AdaptiveEntmax,
    "top_k": TopK,
    "hard": Hard,
}


# What the slot may be given: an object, its saved config, or a name.
NormalizationLike: TypeAlias = Normalization | Config | str


def get(normalization: NormalizationLike) -> Normalization:
    """The normalization that the argument names: an object, its saved config, or a string.

    >>> from keras_attention import normalizations
    >>> normalizations.get("softmax")
    Softmax()
    """
    return saving.slot("normalization", Normalization, BUILTIN, normalization)
