"""Self-attention: a sequence attends to itself, to all keys or to few of them."""

from __future__ import annotations

from keras_attention import patterns, saving, shapes
from keras_attention.hints import Unpack
from keras_attention.layers.attention import Attention
from keras_attention.layers.options import AttentionOptions


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


@saving.register
class LocalSelfAttention(SelfAttention):
    """Self-attention to `neighbors` keys on each side, `rate` positions apart.

    `SelfAttention` with the pattern `SlidingWindow(n · r, n · r) & Dilated(r)`: query i sees key j
    if |i − j| ≤ n · r and (i − j) mod r = 0.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        neighbors: n, the number of keys on each side.
        rate: r, the distance between them.
        causal: whether position t sees only positions up to t.
        **kwargs: all other arguments of `Attention`. A `pattern` is combined with that of
            the layer.

    Call arguments are those of `SelfAttention`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `SelfAttention`; `neighbors` or `rate` is no positive integer.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.LocalSelfAttention(2, 4, neighbors=1, rate=3)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 6, s] > 0]
    [3, 6, 9]
    """

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        neighbors: int,
        rate: int = 1,
        causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, causal, **kwargs)
        self.neighbors = shapes.check_count("neighbors", neighbors)
        self.rate = shapes.check_count("rate", rate)
        reach = self.neighbors * self.rate
        near = patterns.SlidingWindow(reach, reach) & patterns.Dilated(self.rate)
        self.preset_pattern = patterns.every(self.preset_pattern, near)


@saving.register
class AtrousSelfAttention(SelfAttention):
    """Self-attention to every `rate`-th key, counted from the query.

    `SelfAttention` with the pattern `Dilated(r)`: query i sees key j if (i − j) mod r = 0.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        rate: r, the distance between keys.
        causal: whether position t sees only positions up to t.
        **kwargs: all other arguments of `Attention`. A `pattern` is combined with that of
            the layer.

    Call arguments are those of `SelfAttention`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `SelfAttention`; `rate` is no positive integer.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.AtrousSelfAttention(2, 4, rate=4)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 6, s] > 0]
    [2, 6, 10]
    """

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        rate: int,
        causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, causal, **kwargs)
        self.rate = shapes.check_count("rate", rate)
        self.preset_pattern = patterns.every(self.preset_pattern, patterns.Dilated(self.rate))


@saving.register
class SparseSelfAttention(SelfAttention):
    """Self-attention to every `rate`-th key and to the near ones (Child et al. 2019, section 4.3).

    `SelfAttention` with the pattern `Strided(r)`: query i sees key j if (i − j) mod r = 0 or
    |i − j| < r. With r near √T, two layers connect any two positions, and each sees O(√T) keys.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        rate: r, the stride.
        causal: whether position t sees only positions up to t, as in the paper.
        **kwargs: all other arguments of `Attention`. A `pattern` is combined with that of
            the layer.

    Call arguments are those of `SelfAttention`.

    Returns:
        (B, T, num_heads · value_dim), carrying the input's mask.

    Raises:
        ValueError, TypeError: as `SelfAttention`; `rate` is no positive integer.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 12, 8))
    >>> layer = keras_attention.SparseSelfAttention(2, 4, rate=3, causal=True)
    >>> scores = layer(x, return_attention_scores=True)[1]
    >>> [s for s in range(12) if scores[0, 0, 8, s] > 0]
    [2, 5, 6, 7, 8]
    """

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        rate: int,
        causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ):
        super().__init__(num_heads, key_dim, value_dim, causal, **kwargs)
        self.rate = shapes.check_count("rate", rate)
        self.preset_pattern = patterns.every(self.preset_pattern, patterns.Strided(self.rate))
