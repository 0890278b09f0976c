"""Losses on attention weights, for the `scores_regularizer` of every attention layer."""

import math
from typing import TypeAlias

from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core.hints import Config, Tensor
from keras_attention.sequences import shapes

__all__ = ["CoverageLoss", "DoublyStochastic", "Entropy", "Guided", "Regularizer", "get"]


class Regularizer(saving.Configurable, saved=False):
    """A loss of the weights. Subclasses implement `__call__`.

    It gets the weights before dropout, as the layer would return them but in float32, and the
    boolean mask (or None), both broadcasting to (B, H, T, S), and returns a number.

    >>> import keras
    >>> from keras_attention import SelfAttention, regularizers
    >>> @keras.saving.register_keras_serializable(package="my_package")
    ... class Peaked(regularizers.Regularizer):
    ...     def __call__(self, weights, mask):
    ...         return -0.01 * keras.ops.mean(keras.ops.max(weights, axis=-1))
    >>> layer = SelfAttention(2, 4, scores_regularizer=Peaked())
    >>> layer(keras.random.normal((2, 5, 8))).shape, len(layer.losses)
    ((2, 5, 8), 1)
    """

    def __call__(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        """The loss, a number. Rows without keys have weights of zero."""
        raise TypeError(f"{type(self).__name__} must implement `__call__(self, weights, mask)`.")


class DoublyStochastic(Regularizer):
    """factor · Σ_s (target − Σ_t weight[t, s])², so that every key is attended to (Xu et al. 2015).

    Equation 14 of the paper, with target 1: weights then sum to about one over the queries as they
    do over the keys. Keys that no query may see are ignored. The mean over batch and heads.

    Args:
        factor: λ of the paper.
        target: the sum of each key's weights; None for the number of queries divided by that of
            keys, as in uniform attention.

    >>> import keras
    >>> from keras_attention import regularizers
    >>> weights = keras.ops.array([[[[1.0, 0.0], [1.0, 0.0]]]])             # (B, H, T, S)
    >>> float(regularizers.DoublyStochastic()(weights, None))               # (1 − 2)² + (1 − 0)²
    2.0
    """

    def __init__(self, factor: float = 1.0, target: float | None = 1.0):
        self.factor = shapes.check_positive("factor", factor)
        self.target = shapes.check_optional_positive("target", target)

    def __call__(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        received = ops.sum(weights, axis=-2)
        seen, queries = _real(weights, mask, -2), _real(weights, mask, -1)
        target = self.target
        if target is None:
            keys = ops.clip(ops.sum(seen, axis=-1, keepdims=True), 1.0, math.inf)
            target = ops.sum(queries, axis=-1, keepdims=True) / keys
        missing = ops.square(target - received) * seen
        loss = ops.sum(missing, axis=-1)
        return self.factor * _mean(loss, ops.ones_like(loss))


class Entropy(Regularizer):
    """factor · mean over queries of −Σ_s weight[t, s] log weight[t, s].

    A positive factor makes attention select few keys, a negative one makes it spread (Xu et al.
    2015 add λ · entropy to the objective of hard attention). Queries without keys are ignored.

    Args:
        factor: any number but zero.

    >>> import keras
    >>> from keras_attention import regularizers
    >>> weights = keras.ops.array([[[[0.5, 0.5], [1.0, 0.0]]]])             # (B, H, T, S)
    >>> round(float(regularizers.Entropy()(weights, None)), 4)              # (log 2 + 0) / 2
    0.3466
    """

    def __init__(self, factor: float = 1.0):
        self.factor = shapes.check_number("factor", factor)

    def __call__(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        positive = weights > 0
        logs = ops.log(ops.where(positive, weights, ops.ones_like(weights)))
        entropy = -ops.sum(weights * logs, axis=-1)
        return self.factor * _mean(entropy, _real(weights, mask))


class CoverageLoss(Regularizer):
    """factor · mean over queries of Σ_s min(weight[t, s], Σ_{t' < t} weight[t', s]).

    The coverage loss of See et al. 2017, equation 12: a decoder pays for attending again to what it
    has attended to. For cross-attention, and for `AttentionRNN`, whose steps are the queries.
    Queries without keys are ignored.

    Args:
        factor: λ of the paper.

    >>> import keras
    >>> from keras_attention import regularizers
    >>> weights = keras.ops.array([[[[0.5, 0.5], [0.25, 0.75]]]])           # (B, H, T, S)
    >>> float(regularizers.CoverageLoss()(weights, None))                   # (0 + 0.75) / 2
    0.375
    """

    def __init__(self, factor: float = 1.0):
        self.factor = shapes.check_positive("factor", factor)

    def __call__(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        before = backend.cumsum(ops.swapaxes(weights, -1, -2))
        before = ops.swapaxes(before, -1, -2) - weights
        again = ops.sum(ops.where(weights < before, weights, before), axis=-1)
        return self.factor * _mean(again, _real(weights, mask))


class Guided(Regularizer):
    """factor · mean over pairs of weight[t, s] · (1 − exp(−(t / T − s / S)² / (2 width²))).

    The guided attention loss of Tachibana et al. 2018, section 4.1, which keeps weights near the
    diagonal, as from text to speech. For cross-attention, and for `AttentionRNN`. Positions and
    lengths are those of real queries and keys, whichever side the padding is on. A key that no
    query may see counts as padding. The mean over the pairs of a row, then over batch and heads.

    Args:
        factor: of the loss.
        width: g of the paper.

    >>> import keras
    >>> from keras_attention import regularizers
    >>> weights = keras.ops.array([[[[1.0, 0.0], [0.0, 1.0]]]])             # (B, H, T, S)
    >>> float(regularizers.Guided()(weights, None))                         # on the diagonal
    0.0
    """

    def __init__(self, factor: float = 1.0, width: float = 0.2):
        self.factor = shapes.check_positive("factor", factor)
        self.width = shapes.check_positive("width", width)

    def __call__(self, weights: Tensor, mask: Tensor | None) -> Tensor:
        rows, columns = _real(weights, mask, -1), _real(weights, mask, -2)
        (queries, query), (keys, key) = map(_relative, (rows, columns))
        distance = (query[..., None] - key[..., None, :]) / self.width
        real = rows[..., None] * columns[..., None, :]
        away = (1 - ops.exp(-0.5 * ops.square(distance))) * real
        loss = ops.sum(weights * away, axis=(-2, -1)) / (queries * keys)
        return self.factor * _mean(loss, ops.ones_like(loss))


def _relative(real):
    """The number of real queries or keys, and the position of each as a part of it."""
    count = ops.clip(ops.sum(real, axis=-1), 1.0, math.inf)
    return count, (backend.cumsum(real) - 1) / count[..., None]


def _real(weights, mask, axis=-1):
    """1 for queries that may see a key, or with −2 keys that a query may see; 0 for others."""
    if mask is None:
        # Not the first key's: there may be none.
        return ops.ones_like(ops.sum(weights, axis=axis))
    mask = ops.any(ops.broadcast_to(mask, ops.shape(weights)), axis=axis)
    return ops.cast(mask, weights.dtype)


def _mean(array, counted):
    """The mean where `counted` is 1; 0 if it is 1 nowhere."""
    return ops.sum(array * counted) / ops.clip(ops.sum(counted), 1.0, math.inf)


BUILTIN = {
    "coverage": CoverageLoss,
    "doubly_stochastic": DoublyStochastic,
    "entropy": Entropy,
    "guided": Guided,
}


# What the slot may be given: an object, its saved config, or a name.
RegularizerLike: TypeAlias = Regularizer | Config | str


def get(regularizer: RegularizerLike | None) -> Regularizer | None:
    """The regularizer that the argument names: an object, its saved config, a string or None.

    >>> from keras_attention import regularizers
    >>> regularizers.get("entropy")
    Entropy(factor=1.0)
    """
    return saving.slot("scores_regularizer", Regularizer, BUILTIN, regularizer, optional=True)
