"""`CompetingAttention`: queries that compete for each key."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention.feature_maps import SumToOne
from keras_attention.hints import Tensor
from keras_attention.layers.attention import Attention

ops = keras.ops


class CompetingAttention(Attention):
    """Attention whose softmax is over the queries. Locatello et al. 2020, equations 1 and 2.

    The output of a query is the mean of the values by `a + ε`, where a are the weights of the
    softmax. The weights that a call returns are a itself, which show what each key went to.

    Args:
        epsilon: ε, so that a query that won no key has a mean too.
        **kwargs: arguments of `Attention`.
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def attend(self, *heads, return_weights=False, **given):
        mean = SumToOne()

        def normalize(scores, mask):
            return mean.normalize(_over_queries(scores, mask) + self.epsilon, mask)

        result = super().attend(*heads, normalization=normalize, **given)
        if not return_weights:
            return result
        given = {**given, "normalization": _over_queries, "return_weights": True}
        return result.replace(weights=super().attend(*heads, **given).weights)


def _over_queries(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The softmax of each key over the queries, which a kernel masks."""
    # Keras warns about a softmax over one element.
    return ops.ones_like(scores) if scores.shape[-2] == 1 else ops.softmax(scores, axis=-2)
