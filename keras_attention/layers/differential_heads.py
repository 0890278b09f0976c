"""Heads of `DifferentialAttention`: two attentions each, and λ times the second is subtracted."""

import keras

from keras_attention import keras_private, shapes
from keras_attention.backend import backend
from keras_attention.layers.heads import EinsumHeads
from keras_attention.layers.rms_norm import RMSNorm

ops = keras.ops


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
        """Of arrays of all attentions along an axis, the first of each head minus λ the second."""
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

    def join(self, result, query):
        output = self._difference(result.output, axis=2)
        output = self.layer.head_norm(output) * (1 - self.layer.lambda_init)
        return super().join(result.replace(output=output), query)

    def scores(self, weights, query, value):
        return super().scores(self._difference(weights, axis=1), query, value)

    def restricted(self, x):
        x = super().restricted(x)
        return x._replace(
            attention_mask=self.of_attentions(x.attention_mask, "attention_mask"),
            attention_bias=self.of_attentions(x.attention_bias, "attention_bias"),
        )

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
