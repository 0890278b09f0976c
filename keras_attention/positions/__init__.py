"""Positions inside attention: what the score of a pair owes to where the two stand.

A position either turns queries and keys before they meet (`encode`), or adds something to their
scores (`bias`), or both, given absolute positions. So cached decoding, cross-attention and left
padding need no case of their own.

A position of your own is a subclass with one of the two methods:

>>> import keras
>>> from keras_attention import positions
>>> @keras.saving.register_keras_serializable(package="my_package")
... class Nearer(positions.Position):
...     def bias(self, i, j, num_heads):
...         return -0.1 * keras.ops.cast(keras.ops.abs(i - j), "float32")
>>> import keras_attention
>>> x = keras.random.normal((2, 5, 8))
>>> keras_attention.SelfAttention(2, 4, position=Nearer())(x).shape
(2, 5, 8)
"""

import keras

from keras_attention import saving
from keras_attention.scores import full_precision

ops = keras.ops


class Position(saving.ConfigurableLayer):
    """The base of all positions. It is a layer, so that it can own weights, and works in float32.

    Subclasses override `encode` or `bias`, or both, and make weights in
    `build(query_shape, key_shape)`, where the shapes are (B, T, H, K) and (B, S, H, K).
    """

    def __init__(self, **kwargs):
        kwargs["dtype"] = kwargs.get("dtype") or full_precision()
        super().__init__(**kwargs)

    def build(self, query_shape, key_shape):
        pass

    @property
    def has_bias(self):
        """Whether `bias` says anything."""
        return type(self).bias is not Position.bias

    def encode(self, query, key, query_positions, key_positions):
        """Query (B, T, H, K) and key (B, S, H, K) as they enter the score.

        Positions are integer arrays, (T,) or (B, T), and (S,) or (B, S).
        """
        return query, key

    def bias(self, i, j, num_heads):
        """What to add to the scores of queries at positions `i` and keys at positions `j`.

        `i` and `j` are integer arrays that broadcast to (T, S), or to (B, 1, T, S) where rows have
        positions of their own. Returns an array that broadcasts to (B, H, T, S).
        """
        raise TypeError(f"{type(self).__name__} has no bias.")

    def bias_between(self, num_heads):
        """`bias` as kernels ask for it, a function of the position arrays; or None."""
        if not self.has_bias:
            return None

        def between(query_positions, key_positions):
            i, j = query_positions[..., :, None], key_positions[..., None, :]
            i, j = (x[:, None] if len(x.shape) == 3 else x for x in (i, j))
            return self.bias(i, j, num_heads)

        return between


BUILTIN = {}


def get(position):
    """The position that `position` names: a position, its saved config, or None."""
    return saving.slot("position", Position, BUILTIN, position, optional=True)
