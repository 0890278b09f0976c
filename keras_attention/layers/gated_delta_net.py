"""`GatedDeltaNet`: a state that replaces what it has of a key."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_attention import keras_private, masks
from keras_attention.hints import Unpack
from keras_attention.kernels import delta
from keras_attention.kinds import keep
from keras_attention.layers.attention import QkNorm
from keras_attention.layers.options import StateOptions
from keras_attention.layers.state_attention import GatedStateAttention
from keras_attention.scores.base import unit


class GatedDeltaNet(GatedStateAttention):
    r"""The gated delta rule (Yang et al. 2025, equation 10), always causal.

    `S_t = a_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ`, `o_t = S_tᵀ q_t / √key_dim`: a value is
    written in place of what the state has of its key, at the rate `β_t = sigmoid(x_t W_β)`, and
    the rest decays by `a_t = exp(−A softplus(x_t W_a + b))`. Queries, keys and values are silu of
    the projections; queries and keys have length 1. The output is
    `(silu(X W^G) ⊙ Norm(heads)) W^O`. With `conv_kernel_size`, which is 4 in the paper, a causal
    depthwise convolution follows each projection, before silu.

    Args:
        num_heads, key_dim, value_dim: as in `MultiHeadAttention`.
        use_decay: whether the state decays; False is DeltaNet (Yang et al. 2024).
        use_gate, head_norm: as in `Retention`.
        conv_kernel_size: the tokens, up to each, of a convolution of queries, keys and values along
            the sequence, at least 2; None for none. It starts near the identity.
        output_shape, attention_axes: as in `MultiHeadAttention`.
        **kwargs: all other arguments of `Attention` but those of weights of pairs, slots, dropout,
            sink, soft cap and regularizer, and `qk_norm` and `clip_qkv`.

    Call arguments are those of `MultiHeadAttention`, with masks of padding alone: a masked token
    is skipped, and with convolutions, so is its query.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask. `make_cache` makes a state
        of constant size.

    Raises:
        ValueError, TypeError: a size is not as described, or a call has arguments for pairs.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.GatedDeltaNet(num_heads=4, key_dim=8)
    >>> first, cache = layer(x[:, :4], cache=layer.make_cache(batch_size=2))
    >>> last, cache = layer(x[:, 4:], cache=cache)
    >>> bool(keras.ops.max(keras.ops.abs(last - layer(x)[:, 4:])) < 1e-5)
    True
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        use_decay: bool = True,
        use_gate: bool = True,
        head_norm: QkNorm = "rms",
        conv_kernel_size: int | None = None,
        **kwargs: Unpack[StateOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, use_gate, head_norm, **kwargs)
        self._set_conv_kernel_size(conv_kernel_size)
        keep(self, locals())
        self._gates = {"rate": 1, "decay": 1} if self.use_decay else {"rate": 1}

    def build_decay(self):
        if self.use_decay:
            # A from 1 to 16, and decays of A = 1 from exp(−0.001) to exp(−0.1), as the authors'.
            heads = (self.heads.key_value_heads,)
            self.decay_scale = self.add_weight(heads, _spread(1.0, 16.0), name="decay_scale")
            self.decay_bias = self.add_weight(
                name="decay_bias", shape=heads, initializer=_spread(0.001, 0.1, softplus=True)
            )

    def recurrence(self, query, key, value, rate, decay=None, *, mask, causal, state):
        query, key, value = map(ops.silu, (query, key, value))
        rate = masks.clear(ops.sigmoid(rate), mask)
        if decay is not None:
            with keras_private.uncast_variables():
                scale, bias = (
                    ops.cast(weight, decay.dtype)[:, None]
                    for weight in (self.decay_scale, self.decay_bias)
                )
            decay = masks.clear(-ops.exp(scale) * ops.softplus(decay + bias), mask)
        return delta.run(unit(query) * self.key_dim**-0.5, unit(key), value, rate, decay, state)


def _spread(low, high, softplus=False):
    """An initializer of logarithms of numbers from low to high, or of what softplus makes them."""

    def initializer(shape, dtype=None):
        space = np.geomspace if softplus else np.linspace
        numbers = space(low, high, shape[0])
        return ops.convert_to_tensor(np.log(np.expm1(numbers) if softplus else numbers), dtype)

    return initializer
