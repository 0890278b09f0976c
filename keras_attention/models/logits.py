"""`Logits`: what a Transformer says of the next token."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_attention import inputs, masks, parts, saving, shapes
from keras_attention.hints import Initializer, Tensor
from keras_attention.kinds import Count, Positive, keep
from keras_attention.layers import projections


class Logits(saving.ConfigurableLayer):
    """The scores of all tokens, from the last vectors of a stack.

    `cap(scale · transform(x) Wᵀ + b)`, where W is the table of embeddings (tied: Press & Wolf
    2017) or the layer's own, and `cap(s) = c · tanh(s / c)` for a soft cap c (Gemma 2).

    Args:
        vocabulary_size: number of tokens.
        tied: whether W is the table of embeddings of the stack.
        use_bias: whether there is a bias b.
        scale: the multiplier of the products, such as T5's D^(−1/2).
        soft_cap: None, or c.
        transform: None, or a layer applied first, such as BERT's dense layer and norm.
        kernel_initializer: of W, if it is not tied.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (..., D).
        table: the embeddings, (vocabulary_size, D), if tied.

    Returns:
        (..., vocabulary_size), carrying the mask of `x`.

    Raises:
        ValueError: a table is given to a layer that is not tied, or missing; a number is not as
            described.
        TypeError: `transform` is not a layer.

    Example:

    >>> import keras, keras_attention
    >>> x, table = keras.random.normal((2, 5, 16)), keras.random.normal((100, 16))
    >>> keras_attention.Logits(100)(x, table).shape
    (2, 5, 100)
    """

    def __init__(
        self,
        vocabulary_size: Count,
        tied: bool = True,
        use_bias: bool = False,
        scale: Positive = 1.0,
        soft_cap: Positive | None = None,
        transform: keras.layers.Layer | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        keep(self, locals())

    def build(self, x_shape, table_shape=None):
        if self.transform is not None:
            # A `Sequential` would warn that it drops the mask, which was read already.
            self.transform.supports_masking = True
            if not self.transform.built:
                self.transform.build(x_shape)
            x_shape = self.transform.compute_output_shape(x_shape)
        if not self.tied:
            shapes.check_memory("kernel", (x_shape[-1], self.vocabulary_size))
            size, use_bias = self.vocabulary_size, self.use_bias
            self._dense = projections.dense(self, "dense", size, x_shape, use_bias)
        elif self.use_bias:
            self.bias = self.add_weight((self.vocabulary_size,), "zeros", name="bias")

    dense = parts.part("_dense", "The projection, if it is not tied.")

    def call(self, x: Tensor, table: Tensor | None = None) -> Tensor:
        self._check(table)
        mask = masks.implicit(x)
        # Integers would round what a norm and the scale make of them.
        (x,) = inputs.floats((x,), self.compute_dtype)
        # The gradient of the kernel sums over all rows.
        x = masks.clear(x, mask)
        if self.transform is not None:
            x = self.transform(x)
        # The scale on x, which has fewer elements. A bias is not scaled.
        x = x if self.scale == 1 else x * ops.cast(self.scale, x.dtype)
        logits = self._tied(x, table) if self.tied else projections.apply(self, self._dense, x)
        if self.soft_cap is not None:
            logits = self.soft_cap * ops.tanh(logits / self.soft_cap)
        return masks.carry(logits, mask)

    def _check(self, table):
        if self.tied == (table is None):
            found = "no `table`" if table is None else "a `table`"
            raise ValueError(
                "`Logits` take a `table` if, and only if, they are tied. "
                f"Received: tied={self.tied}, and {found}"
            )

    def _tied(self, x, table):
        # As a matrix: TensorFlow multiplies three axes by two several times more slowly.
        rows = ops.reshape(x, (-1, x.shape[-1]))
        logits = projections.product(rows, ops.transpose(ops.cast(table, x.dtype)))
        logits = ops.reshape(logits, (*ops.shape(x)[:-1], self.vocabulary_size))
        return logits + ops.cast(self.bias, logits.dtype) if self.use_bias else logits

    compute_mask = masks.passed_on

    def compute_output_spec(self, x, table=None):
        self._check(table)
        return keras.KerasTensor(self.compute_output_shape(x.shape), self.compute_dtype)

    def compute_output_shape(self, x_shape, table_shape=None):
        if self.transform is not None:
            x_shape = self.transform.compute_output_shape(x_shape)
        return (*x_shape[:-1], self.vocabulary_size)
