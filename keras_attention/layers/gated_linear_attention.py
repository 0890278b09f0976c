"""`GatedLinearAttention`: a sum over the past that forgets by what it reads, each feature alone."""

from __future__ import annotations

from keras import ops

from keras_attention import masks
from keras_attention.backend import backend
from keras_attention.hints import Unpack
from keras_attention.kernels import recurrence
from keras_attention.kinds import Count, Positive, keep
from keras_attention.layers.attention import QkNorm
from keras_attention.layers.options import StateOptions
from keras_attention.layers.state_attention import GatedStateAttention


class GatedLinearAttention(GatedStateAttention):
    r"""Gated linear attention (Yang et al. 2024, section 4.4), always causal.

    `S_t = diag(a_t) S_{t−1} + k_t v_tᵀ`, `o_t = S_tᵀ q_t / √key_dim`, where
    `a_t = sigmoid(x_t W_1 W_2 + b)^(1 / τ)` is a decay of each feature of the keys. The output is
    `(silu(X W^G) ⊙ Norm(heads)) W^O`.

    Args:
        num_heads, key_dim, value_dim: as in `MultiHeadAttention`.
        decay_rank: columns of W_1; None for one matrix in place of the two.
        decay_temperature: τ: the larger, the slower heads forget.
        use_gate, head_norm: as in `Retention`.
        conv_kernel_size: the tokens, up to each, of a causal depthwise convolution of queries, keys
            and values, which silu follows, at least 2; None for neither. It starts near the
            identity.
        output_shape, attention_axes: as in `MultiHeadAttention`.
        **kwargs: all other arguments of `Attention` but those of weights of pairs, slots, dropout,
            sink, soft cap and regularizer, and `qk_norm` and `clip_qkv`.

    Call arguments are those of `MultiHeadAttention`, with masks of padding alone: a masked token
    is skipped, and with convolutions, so is its query. A decay is at least exp(−5) per token, below
    which nothing is left after two.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask. `make_cache` makes a state
        of constant size.

    Raises:
        ValueError, TypeError: a size is not as described, or a call has arguments for pairs.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.GatedLinearAttention(num_heads=4, key_dim=8)
    >>> first, cache = layer(x[:, :4], cache=layer.make_cache(batch_size=2))
    >>> last, cache = layer(x[:, 4:], cache=cache)
    >>> bool(keras.ops.max(keras.ops.abs(last - layer(x)[:, 4:])) < 1e-5)
    True
    """

    _gate_bias = True

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        decay_rank: Count | None = 16,
        decay_temperature: Positive = 16.0,
        use_gate: bool = True,
        head_norm: QkNorm = "rms",
        conv_kernel_size: int | None = None,
        **kwargs: Unpack[StateOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, use_gate, head_norm, **kwargs)
        keep(self, locals())
        self._gates, self._gate_rank = {"decay": self.key_dim}, self.decay_rank
        self._set_conv_kernel_size(conv_kernel_size)

    def recurrence(self, query, key, value, decay, *, mask, causal, state):
        if self.conv_kernel_size is not None:
            query, key, value = map(ops.silu, (query, key, value))
        decay = ops.log_sigmoid(decay) / self.decay_temperature
        decay = backend.maximum(decay, ops.cast(recurrence.SMALLEST, decay.dtype))
        key, decay = (masks.clear(x, mask) for x in (key, decay))
        return recurrence.run(query * self.key_dim**-0.5, key, value, decay, state)
