"""`HardAttention`: each query looks at one key."""

from keras_attention import normalizations, saving
from keras_attention.layers.attention import Attention


@saving.register
class HardAttention(Attention):
    r"""Hard attention of Xu et al. 2015, section 4.1: all weight on one key.

    In training key s is drawn with probability `softmax(score)[s]`; at inference the key of the
    largest score is taken. `Attention` with the normalization `Hard(gradient, temperature)`.

    Args:
        num_heads, key_dim, value_dim: as in `Attention`.
        gradient: "straight_through" (Gumbel-softmax, Jang et al. 2017): the layer trains with any
            loss. "reinforce" (Williams 1992, as in Xu et al.): the layer also returns the
            log-probability of its choices, for a `ReinforceLoss`.
        temperature: of the straight-through gradient.
        **kwargs: the other arguments of `Attention`, but for `normalization` and `use_sink`. `seed`
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

    def __init__(
        self,
        num_heads=1,
        key_dim=None,
        value_dim=None,
        gradient="straight_through",
        temperature=1.0,
        **kwargs,
    ):
        saving.check_free(type(self), kwargs)
        super().__init__(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            normalization=normalizations.Hard(gradient, temperature),
            **kwargs,
        )
        self.gradient = gradient
        self.temperature = temperature

    def _check_slots(self):
        self._check_position_and_sink()

    def _returned(self, output, scores, log_probability, cache=None):
        if self.gradient == "straight_through":
            return super()._returned(output, scores, log_probability, cache)
        returned = (output, scores, log_probability, cache)
        return tuple(part for part in returned if part is not None)
