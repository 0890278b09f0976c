"""`Retention`: a sum over the past that fades, at one rate per head."""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
import numpy as np

from keras_attention import masks, positions, shapes
from keras_attention.hints import Unpack
from keras_attention.kernels import recurrence
from keras_attention.layers.attention import QkNorm
from keras_attention.layers.options import StateOptions
from keras_attention.layers.state_attention import GatedStateAttention


class Retention(GatedStateAttention):
    r"""Multi-scale retention of RetNet (Sun et al. 2023, equations 5 to 8), always causal.

    `output = (silu(X W^G) ⊙ Norm(heads)) W^O`, and a head is
    `output_t = Σ_{s ≤ t} γ^{t − s} (q_t · k_s / √key_dim) v_s`: no softmax, and each head forgets
    at a rate γ of its own. The state is `S_t = γ S_{t−1} + k_t v_tᵀ`.

    Args:
        num_heads, key_dim, value_dim: as in `MultiHeadAttention`.
        decays: γ of each key head, numbers in (0, 1]; None for the paper's `1 − 2^(−5 − h)`.
        position: None, "rotary" or a `positions.Rotary`, which rotates queries and keys, as in the
            paper. There is no state with those that depend on later tokens: "xpos", and scalings
            "dynamic" and "longrope".
        use_gate: whether heads are multiplied by the gate, a projection of the query.
        head_norm: of each head's output: "rms" (which the authors' code uses), "layer", a Keras
            layer, or False.
        output_shape, attention_axes: as in `MultiHeadAttention`.
        **kwargs: all other arguments of `Attention` but those of weights of pairs, slots, dropout,
            sink, soft cap and regularizer, and `qk_norm` and `clip_qkv`.

    Call arguments are those of `MultiHeadAttention`, with masks of padding alone: a masked token
    is skipped, and does not age those before it; in a call without a cache it adds to the
    distances of rotary positions.

    Returns:
        (B, T, D), or (B, T, *output_shape), carrying the query's mask. `make_cache` makes a state
        of constant size.

    Raises:
        ValueError, TypeError: a size or a slot is not as described, or a call has arguments for
            pairs.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.Retention(num_heads=4, key_dim=8)
    >>> first, cache = layer(x[:, :4], cache=layer.make_cache(batch_size=2))
    >>> last, cache = layer(x[:, 4:], cache=cache)
    >>> bool(keras.ops.max(keras.ops.abs(last - layer(x)[:, 4:])) < 1e-5)
    True
    """

    _fixed_arguments = tuple(n for n in GatedStateAttention._fixed_arguments if n != "position")

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
        super().__init__(
            *(num_heads, key_dim, value_dim, use_gate, head_norm), position=position, **kwargs
        )
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
        self._log_decays = [
            math.log(1 - 2.0 ** (-5 - h) if decays is None else decays[h]) for h in range(heads)
        ]

    def recurrence(self, query, key, value, *, mask, causal, state):
        decay = keras.ops.convert_to_tensor(self._log_decays, query.dtype)[None, None, :, None]
        key, decay = (masks.clear(x, mask) for x in (key, decay))
        return recurrence.run(query * self.key_dim**-0.5, key, value, decay, state)
