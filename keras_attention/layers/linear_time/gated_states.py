"""Layers whose state forgets: at one rate per head, by feature, or what it has of a key."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from keras import ops

from keras_attention import positions
from keras_attention.backend import backend
from keras_attention.core import keras_private
from keras_attention.core.hints import Unpack
from keras_attention.kernels.linear_time import delta, recurrence
from keras_attention.layers.base import QkNorm
from keras_attention.layers.linear_time.state_attention import GatedStateAttention
from keras_attention.layers.options import StateOptions
from keras_attention.scores.base import unit
from keras_attention.sequences import shapes


class Retention(GatedStateAttention):
    r"""Multi-scale retention of RetNet (Sun et al. 2023, equations 5 to 8), always causal.

    `output = (silu(X W^G) ⊙ Norm(heads)) W^O`, and a head is
    `output_t = Σ_{s ≤ t} γ^{t − s} (q_t · k_s / √key_dim) v_s`: no softmax, and each head forgets
    at a rate γ of its own. The state is `S_t = γ S_{t−1} + k_t v_tᵀ`.

    Args:
        decays: γ of each key head, numbers in (0, 1]; None for the paper's `1 − 2^(−5 − h)`.
        position: None, "rotary" or a `positions.Rotary`, which rotates queries and keys, as in the
            paper. There is no state with those that depend on later tokens: "xpos", and scalings
            "dynamic" and "longrope".
        use_gate: whether heads are multiplied by the gate, a projection of the query.
        head_norm: of each head's output: "rms" (which the authors' code uses), "layer", a Keras
            layer, or False.
        **kwargs: all other arguments of `LinearAttention` but `feature_map`, `causal`, `qk_norm`
            and `clip_qkv`.

    Call arguments, results and errors are those of `LinearAttention`, with masks of padding alone:
    arguments for pairs are an error. A masked token is skipped: it neither ages those before it nor
    counts for positions.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.Retention(num_heads=4, key_dim=8)
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
        decays: Sequence[float] | None = None,
        position: positions.PositionLike | None = "rotary",
        use_gate: bool = True,
        head_norm: QkNorm = "rms",
        **kwargs: Unpack[StateOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, use_gate, head_norm, **kwargs)
        self.position = positions.get(position)
        if self.position is not None and not isinstance(self.position, positions.Rotary):
            raise ValueError(
                "Retention has no scores, to which a position could add: `position` must be None "
                f"or rotary. Received: position={position!r}"
            )
        heads = self.heads.key_value_heads
        if decays is not None:
            listed = isinstance(decays, (list, tuple, np.ndarray)) and len(decays) == heads
            if not listed or not all(shapes.is_number(x) and 0 < x <= 1 for x in decays):
                raise ValueError(
                    f"`decays` must be {heads} numbers in (0, 1], one for each key head. "
                    f"Received: decays={decays}"
                )
            decays = [float(x) for x in decays]
        self.decays = decays
        found = [1 - 2.0 ** (-5 - h) for h in range(heads)] if decays is None else decays
        self._log_decays = [math.log(decay) for decay in found]

    def prepared(self, query, key, value):
        decay = ops.convert_to_tensor(self._log_decays, query.dtype)[None, None, :, None]
        return query * self.key_dim**-0.5, key, value, decay


class GatedLinearAttention(GatedStateAttention):
    r"""Gated linear attention (Yang et al. 2024, section 4.4), always causal.

    `S_t = diag(a_t) S_{t−1} + k_t v_tᵀ`, `o_t = S_tᵀ q_t / √key_dim`, where
    `a_t = sigmoid(x_t W_1 W_2 + b)^(1 / τ)` is a decay of each feature of the keys. The output is
    `(silu(X W^G) ⊙ Norm(heads)) W^O`.

    Args:
        decay_rank: columns of W_1; None for one matrix in place of the two.
        decay_temperature: τ: the larger, the slower heads forget.
        conv_kernel_size: the tokens, up to each, of a causal depthwise convolution of queries, keys
            and values, which silu follows, at least 2; None for neither. It starts near the
            identity.
        **kwargs: all other arguments of `Retention` but `decays` and `position`.

    Call arguments, results and errors are those of `Retention`; with convolutions, the query of a
    masked token is skipped too. A decay is at least exp(−5) per token, below which nothing is left
    after two.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.GatedLinearAttention(num_heads=4, key_dim=8, decay_rank=None)
    >>> layer(x).shape
    (2, 5, 32)
    """

    gate_bias = True

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        decay_rank: int | None = 16,
        decay_temperature: float = 16.0,
        use_gate: bool = True,
        head_norm: QkNorm = "rms",
        conv_kernel_size: int | None = None,
        **kwargs: Unpack[StateOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, use_gate, head_norm, **kwargs)
        self.conv_kernel_size = shapes.check_optional_count("conv_kernel_size", conv_kernel_size, 2)
        self.decay_rank = shapes.check_optional_count("decay_rank", decay_rank)
        self.decay_temperature = shapes.check_positive("decay_temperature", decay_temperature)
        self.gates, self.gate_ranks = {"decay": self.key_dim}, {"decay": self.decay_rank}

    def prepared(self, query, key, value, decay):
        if self.conv_kernel_size is not None:
            query, key, value = map(ops.silu, (query, key, value))
        decay = ops.log_sigmoid(decay) / self.decay_temperature
        decay = backend.maximum(decay, ops.cast(recurrence.SMALLEST, decay.dtype))
        return query * self.key_dim**-0.5, key, value, decay


class GatedDeltaNet(GatedStateAttention):
    r"""The gated delta rule (Yang et al. 2025, equation 10), always causal.

    `S_t = (I − β_t k_t k_tᵀ) a_t S_{t−1} + β_t k_t v_tᵀ`, `o_t = S_tᵀ q_t / √key_dim`: a value is
    written in place of what the state has of its key, at the rate `β_t = sigmoid(x_t W_β)`, and
    the rest decays by `a_t = exp(−A softplus(x_t W_a + b))`. Queries, keys and values are silu of
    the projections; queries and keys are divided by their lengths `√(|x|² + ε)`. The output is
    `(silu(X W^G) ⊙ Norm(heads)) W^O`. With `conv_kernel_size`, which is 4 in the paper, a causal
    depthwise convolution follows each projection, before silu.

    Args:
        use_decay: whether the state decays; False is DeltaNet (Yang et al. 2024). With "features",
            a_t is diagonal, a decay of each feature of the keys with its b: Kimi's delta attention
            (Kimi Team 2025). It is at least exp(−40) per token then, below which nothing is left.
        conv_kernel_size: the tokens, up to each, of a convolution of queries, keys and values along
            the sequence, at least 2; None for none. It starts near the identity.
        num_key_heads: heads of queries and keys, each of which is that of `num_heads /
            num_key_heads` values with rates and decays of their own, as in Qwen3-Next; None for
            `num_heads`.
        max_rate: c of `β_t = c sigmoid(x_t W_β)`, at most 2. Above 1, the state may change its sign
            along a key, so that the layer can count modulo 2 (Grazzi et al. 2025).
        epsilon: ε, 1e-6 in Qwen3-Next, where it decides about heads as short as 0.001.
        decay_rank: columns of the first of two matrices in place of W_a; None for one.
        gate_activation: of the gate of the output: "silu", or "sigmoid" as in Kimi Linear.
        **kwargs: all other arguments of `Retention` but `decays` and `position`.

    Call arguments, results and errors are those of `Retention`; with convolutions, the query of a
    masked token is skipped too.

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.GatedDeltaNet(num_heads=4, key_dim=8, num_key_heads=2)
    >>> layer(x).shape
    (2, 5, 32)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        use_decay: bool | Literal["features"] = True,
        use_gate: bool = True,
        head_norm: QkNorm = "rms",
        conv_kernel_size: int | None = None,
        num_key_heads: int | None = None,
        max_rate: float = 1.0,
        epsilon: float = 0.0,
        decay_rank: int | None = None,
        gate_activation: Literal["silu", "sigmoid"] = "silu",
        **kwargs: Unpack[StateOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, use_gate, head_norm, **kwargs)
        self.conv_kernel_size = shapes.check_optional_count("conv_kernel_size", conv_kernel_size, 2)
        self.num_key_heads = shapes.check_optional_count("num_key_heads", num_key_heads)
        if num_key_heads is not None and (num_heads % num_key_heads or self.num_key_value_heads):
            raise ValueError(
                "`num_key_heads` must divide `num_heads`, and be None with `num_key_value_heads`. "
                f"Received: num_key_heads={num_key_heads}, num_heads={num_heads}, "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        self.max_rate = shapes.check_positive("max_rate", max_rate)
        if self.max_rate > 2:
            raise ValueError(
                "`max_rate` must be at most 2, beyond which states grow without bound. "
                f"Received: max_rate={max_rate}"
            )
        self.epsilon = shapes.check_number("epsilon", epsilon, minimum=0)
        self.decay_rank = shapes.check_optional_count("decay_rank", decay_rank)
        self.gate_activation = shapes.check_choice(
            "gate_activation", gate_activation, ("silu", "sigmoid")
        )
        self.use_decay = shapes.check_flag("use_decay", use_decay, names=("features",))
        self.gates, self.gate_ranks = {"rate": 1}, {"decay": self.decay_rank}
        if self.use_decay:
            self.gates["decay"] = self.key_dim if self.use_decay == "features" else 1

    def _build_slots(self, query_heads, key_heads):
        super()._build_slots(query_heads, key_heads)
        if self.use_decay:
            # A from 1 to 16, and decays of A = 1 from exp(−0.001) to exp(−0.1), as the authors'.
            heads, biases = (self.heads.key_value_heads,), _spread(0.001, 0.1, softplus=True)
            shape = (*heads, self.key_dim) if self.use_decay == "features" else heads
            self.decay_scale = self.add_weight(heads, _spread(1.0, 16.0), name="decay_scale")
            self.decay_bias = self.add_weight(shape, biases, name="decay_bias")

    def prepared(self, query, key, value, rate, *decay):
        query, key, value = map(ops.silu, (query, key, value))
        query, key = unit(query, self.epsilon) * self.key_dim**-0.5, unit(key, self.epsilon)
        rate = self.max_rate * ops.sigmoid(rate)
        if self.num_key_heads is not None:
            query, key = (ops.repeat(x, self.num_heads // x.shape[2], axis=2) for x in (query, key))
        if not decay:
            return query, key, value, rate
        with keras_private.uncast_variables():
            weights = self.decay_scale, self.decay_bias
            scale, bias = (ops.cast(weight, rate.dtype) for weight in weights)
        bias = bias if self.use_decay == "features" else bias[:, None]
        found = -ops.exp(scale[:, None]) * ops.softplus(decay[0] + bias)
        if self.use_decay == "features":
            found = backend.maximum(found, ops.cast(delta.SMALLEST, found.dtype))
        return query, key, value, rate, found

    def recurrence(self, query, key, value, rate, decay=None, *, causal, state):
        return delta.run(query, key, value, rate, decay, state)


def _spread(low, high, softplus=False):
    """An initializer of logarithms of numbers from low to high, or of what softplus makes them.

    They are spread along the last axis.
    """

    def initializer(shape, dtype=None):
        space = np.geomspace if softplus else np.linspace
        numbers = np.broadcast_to(space(low, high, shape[-1]), shape)
        return ops.convert_to_tensor(np.log(np.expm1(numbers) if softplus else numbers), dtype)

    return initializer
