"""`SelfAttention`: a sequence attends to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_attention import patterns, saving, shapes
from keras_attention.layers.attention import Attention
from keras_attention.layers.options import AttentionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


@saving.register
class SelfAttention(Attention):
    """Attention of a sequence over itself: `Attention` with one input.

    `SelfAttention(8, 16)(x)` is `Attention(8, 16)([x, x, x])`, and with `causal=True` each position
    sees only itself and those before it.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        causal: whether position t sees only positions up to t.
        **kwargs: all other arguments of `Attention`.

    Call arguments are those of `Attention`, except `value` and `key`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `Attention`; and if it is built for a second sequence of another
            shape.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 5, 128))
    >>> keras_attention.SelfAttention(8, 16, causal=True)(x).shape
    (2, 5, 128)
    """

    one_sequence = True

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.causal = shapes.check_flag("causal", causal)
        self.preset_pattern = patterns.Causal() if self.causal else None
