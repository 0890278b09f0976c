"""`ClassToken`: learned tokens before a sequence, its summary or its memory."""

from __future__ import annotations

from typing import Any

from keras import ops

from keras_attention import masks, saving, shapes
from keras_attention.hints import Initializer, Tensor
from keras_attention.kinds import Count, keep


class ClassToken(saving.ConfigurableLayer):
    """Prepends learned tokens to a sequence: one is BERT's [CLS] (Devlin et al. 2019).

    After attention over the longer sequence, `x[:, 0]` is a summary of it. Several are a memory
    that all positions write to and read from (Burtsev et al. 2020), called registers in images
    (Darcet et al. 2024). Tokens are never masked, even if the sequence is left-padded or empty.

    Args:
        initializer: of the tokens.
        num_tokens: how many.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, T, D).
        mask: boolean (B, T), True = a real token; combined with the mask that `x` carries.

    Returns:
        (B, num_tokens + T, D), carrying the mask with True before it.

    Raises:
        ValueError: a number is not as described, or `x` does not have three axes with a known
            number of features.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.layers.Embedding(10, 8, mask_zero=True)(keras.ops.array([[3, 5, 0], [7, 1, 4]]))
    >>> x = keras_attention.ClassToken()(x)
    >>> x = keras_attention.TransformerBlock(intermediate_dim=16, num_heads=2)(x)
    >>> x.shape, x[:, 0].shape
    ((2, 4, 8), (2, 8))
    """

    _masks = "`mask` (B, S) for padding"

    def __init__(
        self, initializer: Initializer = "glorot_uniform", num_tokens: Count = 1, **kwargs: Any
    ):
        super().__init__(**kwargs)
        keep(self, locals())

    def build(self, x_shape, mask_shape=None):
        shapes.check_sequence(x_shape)
        self.token = self.add_weight(
            name="token", shape=(1, self.num_tokens, x_shape[-1]), initializer=self.initializer
        )

    def call(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = masks.padding(x, mask)
        token = ops.cast(self.token, self.compute_dtype)
        token = ops.broadcast_to(token, (ops.shape(x)[0], *token.shape[1:]))
        return masks.carry(ops.concatenate([token, x], axis=1), self._longer(mask))

    def compute_mask(self, x, previous_mask=None):
        return self._longer(masks.padding(x, previous_mask))

    def compute_output_shape(self, x_shape, mask_shape=None):
        shapes.check_sequence(x_shape)
        length = None if x_shape[1] is None else x_shape[1] + self.num_tokens
        return (x_shape[0], length, x_shape[2])

    def _longer(self, mask):
        """A mask (B, T) with True before it, for each token; None stays None."""
        if mask is None:
            return None
        # True for any mask, even an empty one.
        first = ops.logical_or(ops.any(mask, axis=1, keepdims=True), True)
        return ops.concatenate([first] * self.num_tokens + [mask], axis=1)
