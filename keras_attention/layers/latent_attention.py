"""`MultiHeadLatentAttention`: keys and values of one latent per token, and a small cache."""

from typing import Any, ClassVar

import keras
from keras import ops

from keras_attention import positions, saving, scores
from keras_attention.backend import backend
from keras_attention.core import parts
from keras_attention.layers import kv_cache
from keras_attention.layers.blocks import norms
from keras_attention.layers.heads import EinsumHeads, Heads, projections
from keras_attention.layers.multi_head_attention import MultiHeadAttention
from keras_attention.sequences import shapes


class MultiHeadLatentAttention(MultiHeadAttention):
    r"""Multi-head latent attention of DeepSeek-V2 (2024), section 2.1.

    Keys and values of all heads are projections of one latent per token, and one rotated key
    `k^R`, which heads share, has the positions (equations 9 to 19, with RMSNorm of latents):

        [c^R; c_s] = W^DKV x_s,    c = RMSNorm(c),    k^R_s = rotate(c^R_s)
        q_t = W^Q x_t,    or W^UQ RMSNorm(W^DQ x_t) with `query_latent_dim`
        score = (q^C_t · W_i^UK c_s + rotate(q^R_t) · k^R_s) / √(key_dim + rope_dim)
        output = W^O Concat_i(Σ_s softmax(score)_ts W_i^UV c_s)

    A cache stores the latent and the shared key alone: `latent_dim + rope_dim` numbers per token,
    however many heads there are. With a cache, W^UK is applied to queries and W^UV to outputs, so
    that keys and values of heads are never computed: one key for all heads, as in multi-query
    attention. Without one, heads have their own, which takes fewer operations per pair.

    Args:
        num_heads, value_dim: as in `MultiHeadAttention`.
        key_dim: features of each query and key head that come from the latent.
        rope_dim: features of each query head, and of the shared key, that are rotated.
        latent_dim, query_latent_dim: features of the latent of keys and values, and of that of
            queries, or None.
        scale: multiplier of scores; `1 / √(key_dim + rope_dim)` by default.
        position: "rotary" rotates pairs of neighboring features, as DeepSeek's models do; or
            `positions.Rotary(dim=rope_dim)` with its options; None; or a position that has a bias
            alone, such as "alibi".
        use_bias: whether the projections to latents and that of the output have biases.
        **kwargs: all other arguments of `MultiHeadAttention` but `attention_axes`, and those that
            need keys of heads: `score`, `num_key_value_heads`, `qk_norm`, `clip_qkv`,
            `value_norm` and `reuse`.

    Call arguments, results and errors are those of `MultiHeadAttention`: keys and values may come
    from a second sequence too.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.MultiHeadLatentAttention(
    ...     num_heads=4, key_dim=8, rope_dim=4, latent_dim=16
    ... )
    >>> expected = layer(x, use_causal_mask=True)
    >>> cache = layer.make_cache(batch_size=2, length=5)
    >>> cache["key"].shape    # and no values: 20 numbers per token, not 4 · (12 + 8)
    (2, 1, 5, 20)
    >>> output, cache = layer(x, cache=cache)
    >>> bool(keras.ops.max(keras.ops.abs(output - expected)) < 1e-5)
    True
    """

    own_traits: ClassVar = {"layouts": kv_cache.KEYS_ALONE}
    _fixed_arguments = (
        *("score", "num_key_value_heads", "qk_norm", "clip_qkv", "value_norm"),
        *("attention_axes", "reuse"),
    )

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        rope_dim: int,
        latent_dim: int,
        value_dim: int | None = None,
        query_latent_dim: int | None = None,
        scale: float | None = None,
        position: positions.PositionLike | None = "rotary",
        use_bias: bool = False,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        rope_dim = shapes.check_count("rope_dim", rope_dim)
        if isinstance(position, str) and position == "rotary":
            position = positions.Rotary(dim=rope_dim, layout="interleaved")
        kwargs |= {"use_bias": shapes.check_flag("use_bias", use_bias), "position": position}
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.rope_dim = rope_dim
        self.latent_dim = shapes.check_count("latent_dim", latent_dim)
        self.query_latent_dim = shapes.check_optional_count("query_latent_dim", query_latent_dim)
        self.scale = shapes.check_number("scale", scale, optional=True)
        factor = (self.key_dim + rope_dim) ** -0.5 if self.scale is None else self.scale
        # The score that it replaces stays among the parts of the layer, and Keras quantizes only
        # parts that are built.
        self.score.built = True
        self.score = scores.ScaledDot(factor)
        self.heads = LatentHeads(self)
        own = self.position
        rotates = isinstance(own, positions.Rotary) and own.dim == rope_dim
        rotates = rotates and own.scaling != "proportional"
        if not (own is None or own.overrides == {"bias"} or rotates):
            raise ValueError(
                "`position` must be Rotary(dim=rope_dim), or have a bias alone: other features of "
                "keys are those of a latent, which heads project. Received: "
                f"position={type(own).__name__}, dim={getattr(own, 'dim', None)}, "
                f"rope_dim={rope_dim}"
            )

    latent_dense = parts.part("_latent_dense", "The projection to the rotated key and the latent.")
    latent_norm = parts.part("_latent_norm", "The norm of the latent of keys and values.")
    query_latent_norm = parts.part("_query_latent_norm", "The norm of queries' latent, if any.")

    @property
    def query_latent_dense(self) -> keras.Layer | None:
        """The projection to the latent of queries, if there is one."""
        return getattr(self, "_query_latent_dense", None)


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
        what = "Numbers of features, of which one projection makes latents,"
        shapes.check_same(what, value=value_shape[-1], key=key_shape[-1])

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
            given = "rms", "query_latent_norm", (None, latent), layer.dtype_policy
            layer._query_latent_norm = norms.make(*given)
        return made

    def projection(self, role, shape):
        layer, size = self.layer, self.size(role, shape)
        inputs = layer.query_latent_dim or shape[-1] if role == "query" else layer.latent_dim
        # The rotated features of a key are no projection of the latent.
        size = layer.key_dim if role == "key" else size
        return self._einsum(role, (*shape[:-1], inputs), 1, (self.count(role), size))

    def _has_bias(self, name):
        return self.layer.use_bias and name in _BIASED

    def queries(self, x):
        """The queries (B, T, H, R + K)."""
        self.check_features("query", x)
        layer = self.layer
        if layer.query_latent_dim is not None:
            x = layer._query_latent_norm(self.project("query_latent", x, layer.query_latent_dim))
        return self.project("query", x, *self.sizes["query"])

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
            return self.project(role, latent, *self.sizes["value"])
        keys = self.project(role, latent, layer.num_heads, layer.key_dim)
        shared = (*backend.shape(keys)[:3], layer.rope_dim)
        rotated = ops.broadcast_to(ops.expand_dims(rotated, 2), shared)
        return ops.concatenate([rotated, keys], axis=-1)

    def up_kernel(self, role):
        """The kernel (C, H, K or V) that makes keys or values of latents."""
        dense = self.dense(role)
        if projections.plain(self.layer, dense):
            return ops.cast(dense.kernel, self.layer.compute_dtype)
        # A quantized projection has no such kernel: its rows are the outputs of unit vectors.
        units = ops.eye(self.layer.latent_dim, dtype=self.layer.compute_dtype)
        return dense(units[None])[0]


class AbsorbedHeads:
    """The same attention over one key (B, S, 1, R + C) of all heads, which is their value too.

    `qᵀ (W c) = (Wᵀ q)ᵀ c`: queries are those of latents, and so are outputs, (B, T, H, R + C), of
    which the first R features count for nothing.
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

    def merge(self, result, query):
        heads = self.expanded
        latents = result.output[..., heads.layer.rope_dim :]
        output = ops.einsum("bthc,chv->bthv", latents, heads.up_kernel("value"))
        return heads.merge(result.replace(output=output), query)
