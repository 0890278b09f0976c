"""`TransformerXL`: projected sines of the distance, and learned biases of both terms."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from keras_attention import saving, scores, shapes
from keras_attention.hints import Initializer
from keras_attention.kernels import semantics
from keras_attention.kinds import keep
from keras_attention.positions.base import Position
from keras_attention.positions.rotary import angles


class TransformerXL(Position):
    r"""Relative positions of Transformer-XL. Dai et al. 2019 (arXiv 1901.02860), section 3.3.

    `score(i, j) = ((q_i + u) · k_j + (q_i + v) · W r_{i − j}) / √K` with u, v and W learned by each
    head, and the sines and cosines of the distance, of `dim` features:

        r_d = [sin(d θ_n), …, cos(d θ_n), …],  θ_n = max_wavelength^(−2 n / dim)

    The second term is an inner product of two vectors that each depend on one position, since
    `sin(a − b)` is such a sum, so that positions of any kind, and caches, cost the same. Kernels
    get it as a bias of all pairs, (B, H, T, S).

    The memory of the segment before is a cache, of a layer whose pattern is a window.

    Args:
        dim: number of sines and cosines, even. None is that of a head's features; the paper has
            that of the model's.
        max_wavelength: the longest wavelength, divided by 2π.
        kernel_initializer: of W.
        bias_initializer: of u and v.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Raises:
        ValueError: a number is not as described, the score is not "scaled_dot" or has another
            scale, or layers of different sizes share it.

    Example:

    >>> import keras, keras_attention
    >>> from keras_attention import patterns, positions
    >>> layer = keras_attention.MultiHeadAttention(
    ...     8, 4, position="transformer_xl", pattern=patterns.SlidingWindow(3, 0)
    ... )
    >>> segments = keras.random.normal((2, 10, 32))
    >>> whole = layer(segments, use_causal_mask=True)
    >>> memory = layer.make_cache(2, 4)
    >>> first, memory = layer(segments[:, :5], cache=memory)
    >>> second, memory = layer(segments[:, 5:], cache=memory)
    >>> bool(keras.ops.max(keras.ops.abs(second - whole[:, 5:])) < 1e-5)
    True
    """

    scores = (scores.ScaledDot,)
    divides = "both terms by √K"
    encodes_alone = True
    has_query_bias = True

    def __init__(
        self,
        dim: int | None = None,
        max_wavelength: float = 10000,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        keep(self, locals())
        self.dim = shapes.check_count("dim", dim, 2, optional=True)
        if dim is not None and dim % 2:
            raise ValueError(
                "TransformerXL has a sine and a cosine of each wavelength, so that `dim` must be "
                f"even. Received: dim={dim}"
            )
        self.max_wavelength = shapes.check_number("max_wavelength", max_wavelength, above=1)

    def build(self, query_shape, key_shape):
        heads, size = query_shape[2:]
        dim = self.dim or size + size % 2
        self.kernel = self.add_weight((dim, heads, size), self.kernel_initializer, name="kernel")
        for name in ("content_bias", "position_bias"):
            initializer = saving.clone_initializer(self.bias_initializer)
            weight = self.add_weight(name=name, shape=(heads, size), initializer=initializer)
            setattr(self, name, weight)

    def into_spec(self, spec, query, key, key_mask=None, projected=()):
        wide = shapes.accumulation_dtype(query, key)
        sizes = zip(("Heads", "Features"), self.kernel.shape[1:], query.shape[2:], strict=True)
        for what, built, received in sizes:
            what = f"{what} of layers that share a TransformerXL"
            shapes.check_same(what, built=built, received=received)
        query, key = (semantics.finite(ops.cast(x, wide)) for x in (query, key))
        kernel, u, v = (
            ops.cast(weight, wide)
            for weight in (self.kernel, self.content_bias, self.position_bias)
        )
        scale = query.shape[-1] ** -0.5
        # Groups (G, H / G, K) of heads that share a key.
        u = ops.reshape(u * scale, (key.shape[2], -1, u.shape[-1]))
        of_keys = ops.einsum("grk,bsgk->bgrs", u, key)
        batch, length = ops.shape(key)[:2]
        of_keys = ops.reshape(of_keys, (batch, query.shape[2], 1, length))
        of_queries = ops.einsum("bthk,nhk->bhtn", (query + v) * scale, kernel)
        sines, cosines = ops.split(of_queries, 2, axis=-1)
        dim = kernel.shape[0]
        theta = float(self.max_wavelength) ** (-np.arange(0, dim, 2) / dim)
        at: Any = spec.positions
        (sin_i, cos_i), (sin_j, cos_j) = (
            (ops.sin(found), ops.cos(found))
            for found in (angles(ops.cast(x, wide), theta) for x in (at.query, at.key))
        )
        if len(at.query.shape) == 2:
            sin_i, cos_i = sin_i[:, None], cos_i[:, None]
        # sin(i − j) = sin i cos j − cos i sin j,  cos(i − j) = cos i cos j + sin i sin j
        of_queries = ops.concatenate(
            [sines * sin_i + cosines * cos_i, cosines * sin_i - sines * cos_i], axis=-1
        )
        of_positions = ops.concatenate([cos_j, sin_j], axis=-1)
        keys = "bsn" if len(at.key.shape) == 2 else "sn"
        pairs = ops.einsum(f"bhtn,{keys}->bhts", of_queries, of_positions)
        return spec.replace(biases=(*spec.biases, of_keys, pairs))
