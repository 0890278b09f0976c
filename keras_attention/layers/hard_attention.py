"""`HardAttention`: each query attends to one key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_attention import normalizations, saving
from keras_attention.layers.attention import Attention
from keras_attention.layers.options import AttentionOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


@saving.register
class HardAttention(Attention):
    r"""Hard attention of Xu et al. 2015, section 4.1: all weight on one key.

    In training key s is sampled with probability `softmax(score)[s]`; at inference the key with
    the largest score is selected. `Attention` with the normalization `Hard(gradient, temperature)`.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        gradient: "straight_through" (Gumbel-softmax, Jang et al. 2017): the layer trains with any
            loss. "reinforce" (Williams 1992, as in Xu et al.): the layer also returns the
            log-probability of its choices, for a `ReinforceLoss`.
        temperature: of the straight-through gradient.
        **kwargs: all other arguments of `Attention` but `normalization` and `use_sink`. `seed`
            makes the choices reproducible.

    Call arguments are those of `Attention`.

    Returns:
        As `Attention`, scores being ones and zeros. With `gradient="reinforce"` the
        log-probability, (B, H, T), comes last: `(output, log_probability)` or
        `(output, scores, log_probability)`. It is 0 for a query with no key.

    Raises:
        ValueError, TypeError: as `Attention` and `normalizations.Hard`.

    Example:

    >>> import keras, keras_attention
    >>> queries, memory = keras.random.normal((2, 3, 8)), keras.random.normal((2, 5, 8))
    >>> layer = keras_attention.HardAttention(seed=1)
    >>> output, scores = layer(queries, memory, return_attention_scores=True, training=True)
    >>> bool(keras.ops.all(keras.ops.sum(scores == 1, axis=-1) == 1))
    True
    """

    _fixed_arguments = ("normalization", "use_sink")

    returns_log_probability = True
    normalization: normalizations.Hard

    def __init__(
        self,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        gradient: normalizations.Gradient = "straight_through",
        temperature: float = 1.0,
        **kwargs: Unpack[AttentionOptions],
    ):
        saving.check_free(type(self), kwargs)
        kwargs["normalization"] = normalizations.Hard(gradient, temperature)
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        self.gradient = self.normalization.gradient
        self.temperature = self.normalization.temperature
