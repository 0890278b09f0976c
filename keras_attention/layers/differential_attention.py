"""`DifferentialAttention`: the difference of two softmax attentions, which cancels common noise."""

from __future__ import annotations

import math
from typing import Any

from keras_attention import saving, shapes
from keras_attention.layers.differential_heads import DifferentialHeads
from keras_attention.layers.multi_head_attention import MultiHeadAttention


@saving.register
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
        num_heads: number of heads, each of two attentions.
        key_dim: features of each query and key.
        value_dim: features of each value head, an even number; defaults to `2 * key_dim`.
        depth: the number of this block in its stack, from 1; it sets λ_init.
        norm_epsilon: of the norm of heads.
        use_bias: as in `MultiHeadAttention`.
        **kwargs: `output_shape`, `attention_axes`, `sliding_window`, `flash_attention` and
            `use_gate` of `MultiHeadAttention`, and all other arguments of `Attention`.
            `num_key_value_heads` counts pairs of keys.

    Call arguments are those of `Attention`. Scores are those of the difference, (B, H, T, S).

    Returns:
        (B, T, D), carrying the query's mask.

    Raises:
        ValueError, TypeError: as `MultiHeadAttention`; `value_dim` is odd.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 32))
    >>> layer = keras_attention.DifferentialAttention(num_heads=2, key_dim=8, depth=3)
    >>> output, scores = layer(x, return_attention_scores=True)
    >>> output.shape, scores.shape
    ((2, 5, 32), (2, 2, 5, 5))
    >>> round(layer.lambda_init, 3)
    0.471
    """

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
        shapes.check_count("key_dim", key_dim)
        size = 2 * key_dim if value_dim is None else value_dim
        super().__init__(num_heads, key_dim, size, use_bias=use_bias, **kwargs)
        if self.value_dim % 2:
            raise ValueError(
                "`value_dim` must be even: a cache stores half of a value beside each of its two "
                f"keys. Received: value_dim={value_dim}"
            )
        self.depth = shapes.check_count("depth", depth)
        self.norm_epsilon = shapes.check_number("norm_epsilon", norm_epsilon, above=0)
        self.heads = DifferentialHeads(self)

    @property
    def lambda_init(self) -> float:
        """λ_init, by `depth`."""
        return 0.8 - 0.6 * math.exp(-0.3 * (self.depth - 1))
