"""`DifferentialAttention`: the difference of two softmax attentions, which cancels common noise."""

import math
from typing import Any, ClassVar

import keras
from keras import ops

from keras_attention import saving
from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.layers.blocks.norms import RMSNorm
from keras_attention.layers.heads import EinsumHeads
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.sequences import shapes


class DifferentialAttention(MultiHeadAttention):
    r"""Differential attention of Ye et al. 2024, equations 1 to 3.

    Each head has two queries and two keys, and one value of `value_dim` features:

        head = (softmax(q₁ k₁ᵀ / √key_dim) − λ softmax(q₂ k₂ᵀ / √key_dim)) V
        λ = exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + λ_init
        λ_init = 0.8 − 0.6 exp(−0.3 (depth − 1))
        output = W^O Concat_i((1 − λ_init) RMSNorm(head_i))

    The vectors λ_q and λ_k are learned, and shared by the heads, as is the scale of the norm.

    It has the weights of `MultiHeadAttention(2 * num_heads, key_dim)`, since a value has twice as
    many features as a key, and its time except for values, which take twice as long. A `position`
    with a bias for each head, such as ALiBi, has one for each of these 2 H attentions; that of an
    `attention_bias` (B, H, T, S) is added to both attentions of a head.

    Args:
        num_heads, key_dim: how many heads of two attentions; features of each query and key.
        value_dim: features of each value head, an even number; defaults to `2 * key_dim`.
        depth: the number of this block in its stack, from 1; it sets λ_init.
        norm_epsilon: of the norm of heads.
        **kwargs: all other arguments of `MultiHeadAttention` but `reuse`. `num_key_value_heads`
            counts pairs of keys.

    Call arguments, results and errors are those of `MultiHeadAttention`. Scores are those of the
    difference, (B, H, T, S).

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.DifferentialAttention(num_heads=2, key_dim=8, depth=3)
    >>> output, scores = layer(x, return_attention_scores=True)
    >>> output.shape, scores.shape
    ((2, 5, 32), (2, 2, 5, 5))
    >>> round(layer.lambda_init, 3)
    0.471
    """

    own_traits: ClassVar = {"attentions": 2, "norms_heads": True}
    _fixed_arguments = ("reuse",)

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        depth: int = 1,
        norm_epsilon: float = 1e-5,
        use_bias: bool = False,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        shapes.check_count("key_dim", key_dim)
        size = 2 * key_dim if value_dim is None else value_dim
        super().__init__(num_heads, key_dim, size, use_bias=use_bias, **kwargs)
        if self.value_dim % 2:
            raise ValueError(
                "`value_dim` must be even: a cache stores half of a value beside each of its two "
                f"keys. Received: value_dim={value_dim}"
            )
        self.depth = shapes.check_count("depth", depth)
        self.norm_epsilon = shapes.check_positive("norm_epsilon", norm_epsilon)
        self.heads = DifferentialHeads(self)

    @property
    def lambda_init(self) -> float:
        """λ_init, by `depth`."""
        return 0.8 - 0.6 * math.exp(-0.3 * (self.depth - 1))


class DifferentialHeads(EinsumHeads):
    """Two attentions per head: (B, T, 2H, K), (B, S, 2G, K) and (B, S, 2G, V / 2).

    Of the r = H / G heads of a group come the r first attentions, then the r second ones, so that
    the first share a key.
    """

    def count(self, role):
        return 2 * super().count(role)

    def size(self, role, shape):
        return self.layer.value_dim // 2 if role == "value" else self.layer.key_dim

    def shape(self, role, shape):
        found = super().shape(role, shape)
        return (*found[:-1], self.layer.value_dim) if role == "value" else found

    @property
    def stored(self):
        return self.count("key"), self.layer.key_dim, self.layer.value_dim // 2

    def build(self, query_shape, value_shape, key_shape):
        layer = self.layer
        made = super().build(query_shape, value_shape, key_shape)
        # Equal vectors would have equal gradients, and stay equal.
        seeds = (layer.seed, None if layer.seed is None else layer.seed + 1)
        for name, seed in zip(("lambda_query", "lambda_key"), seeds, strict=True):
            start = keras.initializers.RandomNormal(stddev=0.1, seed=seed)
            weight = layer.add_weight(name=name, shape=(2, layer.key_dim), initializer=start)
            setattr(layer, name, weight)
        layer.head_norm = RMSNorm(layer.norm_epsilon, name="head_norm", dtype=layer.dtype_policy)
        layer.head_norm.build((None, layer.value_dim))
        return made

    def values(self, value):
        batch, length, heads, half = backend.shape(value)
        value = ops.reshape(value, (batch, length, heads // 2, 2 * half))
        return ops.repeat(value, 2, axis=2)

    def _difference(self, array, axis):
        """The first attention of each head minus λ times the second; `axis` has all attentions."""
        layer = self.layer
        with keras_private.uncast_variables():
            wide = shapes.accumulation_dtype(array)
            vectors = ops.cast(layer.lambda_query, wide) * ops.cast(layer.lambda_key, wide)
            first, second = ops.unstack(ops.exp(ops.sum(vectors, axis=-1)))
        factor = ops.cast(first - second + layer.lambda_init, array.dtype)
        groups = self.key_value_heads
        before, after = backend.shape(array)[:axis], backend.shape(array)[axis + 1 :]
        pairs = (*before, groups, 2, layer.num_heads // groups, *after)
        ours, other = ops.unstack(ops.reshape(array, pairs), axis=axis + 1)
        return ops.reshape(ours - factor * other, (*before, layer.num_heads, *after))

    def merge(self, result, query):
        output = self._difference(result.output, axis=2)
        output = self.layer.head_norm(output) * (1 - self.layer.lambda_init)
        return super().merge(result.replace(output=output), query)

    def scores(self, weights, query, value):
        return super().scores(self._difference(weights, axis=1), query, value)

    def restricted(self, x):
        x = super().restricted(x)
        pairs = x.pairwise.items()
        return x._replace(**{name: self.of_attentions(array, name) for name, array in pairs})

    def of_attentions(self, array, name="weights"):
        """An array of pairs of each head (B, H, T, S), for both of its attentions."""
        if array is None or array.shape[1] == 1:
            return array
        what = f"Numbers of heads of the layer and of `{name}`"
        shapes.check_same(what, layer=self.layer.num_heads, **{name: array.shape[1]})
        batch, heads, *pairs = backend.shape(array)
        groups = self.key_value_heads
        array = ops.reshape(array, (batch, groups, 1, heads // groups, *pairs))
        return ops.reshape(ops.repeat(array, 2, axis=2), (batch, 2 * heads, *pairs))
