"""`LearnedQueries`: vectors that are the same for every input, to attend with."""

from __future__ import annotations

from typing import Any

import keras

from keras_attention import saving, shapes
from keras_attention.hints import Initializer, Tensor

ops = keras.ops


@saving.register
class LearnedQueries(saving.ConfigurableLayer):
    """A fixed number of learned vectors for each sequence: seeds, inducing points, or latents.

    With a `TransformerBlock(cross_attention=True, self_attention=False)` they summarize a sequence
    or a set of any length: the seeds of pooling by multi-head attention and the inducing points of
    a Set Transformer (Lee et al. 2019, sections 3.1 and 3.2), the latents of a Perceiver (Jaegle et
    al. 2021).

    Args:
        num_queries: how many.
        dim: features of each; those of the input by default.
        initializer: of the vectors.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, S, D). Only its batch size, and D without `dim`, are used.

    Returns:
        (B, num_queries, dim), without a mask: queries are no padding, whatever x has.

    Raises:
        ValueError: a size is not a positive integer, or `x` does not have three axes with, unless
            `dim` is given, a known number of features.

    Example:

    >>> import keras, keras_attention
    >>> x = keras.random.normal((2, 100, 16))
    >>> latents = keras_attention.LearnedQueries(4)(x)
    >>> block = keras_attention.TransformerBlock(
    ...     32, 2, cross_attention=True, self_attention=False, residual="pre"
    ... )
    >>> block(latents, x).shape
    (2, 4, 16)
    """

    def __init__(
        self,
        num_queries: int,
        dim: int | None = None,
        initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_queries = shapes.check_count("num_queries", num_queries)
        self.dim = shapes.check_count("dim", dim, optional=True)
        self.initializer = keras.initializers.get(initializer)

    def build(self, x_shape):
        shape = self.compute_output_shape(x_shape)
        self.queries = self.add_weight(
            name="queries", shape=shape[1:], initializer=self.initializer
        )

    def call(self, x: Tensor) -> Tensor:
        queries = ops.cast(self.queries, self.compute_dtype)
        return ops.broadcast_to(queries, (ops.shape(x)[0], *queries.shape))

    def compute_mask(self, x, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        if len(x_shape) != 3 or (self.dim is None and x_shape[-1] is None):
            raise ValueError(
                "`x` must be (batch, positions, features), with a known number of features unless "
                f"`dim` is given. Received: x.shape={tuple(x_shape)}"
            )
        return (x_shape[0], self.num_queries, self.dim or x_shape[-1])
