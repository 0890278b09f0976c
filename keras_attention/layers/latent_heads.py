"""Heads whose keys and values come from one small latent per token, which is all a cache stores.

    LatentHeads     keys and values of each head, by up-projections of the latent
    AbsorbedHeads   with a cache: one key, the latent, for all heads; its up-projections are applied
                    to queries and outputs instead

The features of a head begin with those that a rotary position rotates, which all keys share.
"""

import keras

from keras_attention import shapes
from keras_attention.backend import backend
from keras_attention.layers import norms, projections
from keras_attention.layers.heads import EinsumHeads, Heads

ops = keras.ops

# The projections that may have a bias: those that are not applied to queries and outputs instead.
_BIASED = ("query_latent", "latent", "attention_output", "output")


class LatentHeads(EinsumHeads):
    """Queries (B, T, H, R + K), keys (B, S, H, R + K) and values (B, S, H, V) of latents (B, S, C).

    Args:
        layer: the attention layer: `key_dim` K, `value_dim` V, `rope_dim` R, `latent_dim` C,
            `query_latent_dim` or None, and the options of its projections.
    """

    def __init__(self, layer):
        super().__init__(layer)
        self.cached = AbsorbedHeads(self)

    def size(self, role, shape):
        layer = self.layer
        return layer.value_dim if role == "value" else layer.rope_dim + layer.key_dim

    def check_shapes(self, query_shape, value_shape, key_shape):
        Heads.check_shapes(self, query_shape, value_shape, key_shape)
        given = {"value": value_shape[-1], "key": key_shape[-1]}
        shapes.check_same("Numbers of features, of which one projection makes latents,", **given)

    @property
    def stored(self):
        return self.key_value_heads, self.size("key", None), self.layer.value_dim

    def build(self, query_shape, value_shape, key_shape):
        layer, latent = self.layer, self.layer.query_latent_dim
        made = super().build(query_shape, value_shape, key_shape)
        size = layer.rope_dim + layer.latent_dim
        made["latent"] = self._einsum("latent", value_shape, 1, (size,))
        norm = norms.make("rms", "latent_norm", (None, layer.latent_dim), layer.dtype_policy)
        layer._latent_norm, layer._query_latent_norm = norm, None
        if latent is not None:
            made["query_latent"] = self._einsum("query_latent", query_shape, 1, (latent,))
            layer._query_latent_norm = norms.make(
                "rms", "query_latent_norm", (None, latent), layer.dtype_policy
            )
        return made

    def projection(self, role, shape):
        layer = self.layer
        if role == "query":
            inputs, size = layer.query_latent_dim or shape[-1], self.size(role, shape)
        else:
            inputs, size = layer.latent_dim, layer.value_dim if role == "value" else layer.key_dim
        return self._einsum(role, (*shape[:-1], inputs), 1, (self.count(role), size))

    def _has_bias(self, name):
        return self.layer.use_bias and name in _BIASED

    def queries(self, x):
        """The queries (B, T, H, R + K)."""
        self.check_features("query", x)
        layer = self.layer
        if layer.query_latent_dim is not None:
            latent = self.project("query_latent", x, layer.query_latent_dim)
            x = layer._query_latent_norm(latent)
        return self.project("query", x, layer.num_heads, self.size("query", None))

    def latents(self, x, role):
        """The features (B, S, R) that are rotated, and the latents (B, S, C)."""
        self.check_features(role, x)
        layer = self.layer
        found = self.project("latent", x, layer.rope_dim + layer.latent_dim)
        return found[..., : layer.rope_dim], layer._latent_norm(found[..., layer.rope_dim :])

    def split(self, x, role):
        if role == "query":
            return self.queries(x)
        return self._expanded(role, *self.latents(x, role))

    def split_all(self, query, key, value):
        of_key = self.latents(key, "key")
        of_value = of_key if value is key else self.latents(value, "value")
        keys, values = self._expanded("key", *of_key), self._expanded("value", *of_value)
        return self.queries(query), keys, values

    def _expanded(self, role, rotated, latent):
        """The keys or the values of all heads."""
        layer = self.layer
        if role == "value":
            return self.project(role, latent, layer.num_heads, layer.value_dim)
        keys = self.project(role, latent, layer.num_heads, layer.key_dim)
        shared = (*backend.shape(keys)[:3], layer.rope_dim)
        rotated = ops.broadcast_to(ops.expand_dims(rotated, 2), shared)
        return ops.concatenate([rotated, keys], axis=-1)

    def up_kernel(self, role):
        """The kernel (C, H, K or V) that makes keys or values of latents."""
        dense = self.dense(role)
        if projections.plain(self.layer, dense):
            return ops.cast(dense.kernel, self.layer.compute_dtype)
        # Of a quantized projection, say: what it makes of each unit vector.
        units = ops.eye(self.layer.latent_dim, dtype=self.layer.compute_dtype)
        return dense(units[None])[0]


class AbsorbedHeads:
    """The same attention over one key (B, S, 1, R + C) of all heads, which is their value too.

    `qᵀ (W c) = (Wᵀ q)ᵀ c`: queries are those of latents, and so are outputs, (B, T, H, R + C), of
    which the first R features count for nothing.

    Args:
        heads: the `LatentHeads`.
    """

    def __init__(self, heads):
        self.expanded = heads

    @property
    def stored(self):
        layer = self.expanded.layer
        return 1, layer.rope_dim + layer.latent_dim, None

    def split_all(self, query, key, value):
        heads, rope = self.expanded, self.expanded.layer.rope_dim
        query = heads.queries(query)
        of_latents = ops.einsum("bthk,chk->bthc", query[..., rope:], heads.up_kernel("key"))
        query = ops.concatenate([query[..., :rope], of_latents], axis=-1)
        key = ops.concatenate(heads.latents(key, "key"), axis=-1)
        return query, ops.expand_dims(key, 2), None

    def join(self, result, query):
        heads = self.expanded
        latents = result.output[..., heads.layer.rope_dim :]
        output = ops.einsum("bthc,chv->bthv", latents, heads.up_kernel("value"))
        return heads.join(result.replace(output=output), query)
