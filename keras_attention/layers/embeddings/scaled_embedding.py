"""`ScaledEmbedding`: scaled token embeddings, and the tied output projection."""

from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core.hints import Constraint, Initializer, Regularizer, Tensor
from keras_attention.layers.heads import projections
from keras_attention.sequences import masks, shapes


class ScaledEmbedding(saving.ConfigurableLayer):
    r"""Token embedding multiplied by √dim, whose table can also compute the output logits.

    `embedding[id] · scale`, by default √dim (Vaswani et al. 2017, section 3.4), and with
    `reverse=True` the tied output projection `x · embeddingᵀ` of the same section (Press & Wolf
    2017).

    Args:
        vocabulary_size, dim: number of tokens, and features of the vector of each.
        mask_zero: whether token 0 is padding, to be masked.
        embeddings_initializer: of the table. The default, a normal of standard deviation 1/√dim,
            gives vectors of unit variance after scaling by √dim.
        embeddings_regularizer, embeddings_constraint: of the table.
        scale: the multiplier of vectors; None for √dim, 1 for none.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs: integer token ids of any shape; or vectors (..., dim) with `reverse=True`.
        reverse: whether to return logits over the vocabulary.

    Returns:
        (..., dim), carrying the mask of token 0 if `mask_zero`; or logits (..., vocabulary_size)
        with `reverse=True`, carrying the mask of the input. Logits are not scaled.

    Raises:
        ValueError: a size is not a positive integer, or with `reverse=True` the features of
            `inputs` differ from `dim`.

    >>> import keras, keras_attention
    >>> embedding = keras_attention.ScaledEmbedding(100, 16, mask_zero=True)
    >>> x = embedding(keras.ops.convert_to_tensor([[5, 7, 0]]))
    >>> x.shape, embedding(x, reverse=True).shape
    ((1, 3, 16), (1, 3, 100))
    """

    # As Keras's layer.
    _takes_any_layout = True

    def __init__(
        self,
        vocabulary_size: int,
        dim: int,
        mask_zero: bool = False,
        embeddings_initializer: Initializer | None = None,
        embeddings_regularizer: Regularizer | None = None,
        embeddings_constraint: Constraint | None = None,
        scale: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = shapes.check_count("vocabulary_size", vocabulary_size)
        self.dim = shapes.check_count("dim", dim)
        self.mask_zero = shapes.check_flag("mask_zero", mask_zero)
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=self.dim**-0.5)
        options = embeddings_initializer, embeddings_regularizer, embeddings_constraint
        self._keep_options("embeddings", *options)
        self.scale = shapes.check_optional_positive("scale", scale)

    def build(self, inputs_shape):
        sizes = self.vocabulary_size, self.dim
        shapes.check_memory("embedding", sizes)
        given = self.embeddings_initializer, self.embeddings_regularizer, self.embeddings_constraint
        self._embedding = keras.layers.Embedding(
            *sizes, *given, name="embedding", dtype=self.dtype_policy
        )
        # A mask that ids carry, if any, passes through; Keras's layer would warn that it is lost.
        self._embedding.supports_masking = True
        self._embedding.build(inputs_shape)

    @property
    def table(self) -> keras.Variable:
        """The variable of the table, for reading and assigning weights."""
        return self._embedding._embeddings

    @property
    def embeddings(self) -> Tensor:
        """The table, (vocabulary_size, dim), dequantized if it is quantized."""
        if self._embedding.quantization_mode is not None:
            # Keras's own property then returns the stored integers, without their scales.
            return self._embedding(ops.arange(self.vocabulary_size, dtype="int32"))
        return self._embedding.embeddings

    def call(self, inputs: Tensor, reverse: bool = False) -> Tensor:
        if reverse:
            return masks.carry(self._logits(inputs), masks.implicit(inputs))
        vectors = self._embedding(inputs)
        scale = self.dim**0.5 if self.scale is None else self.scale
        # A new tensor in any case, since a mask is set on it.
        output = ops.multiply(vectors, ops.cast(scale, vectors.dtype))
        return masks.carry(output, ops.not_equal(inputs, 0)) if self.mask_zero else output

    def _logits(self, vectors):
        self._logits_shape(vectors)
        table = ops.cast(self.embeddings, self.compute_dtype)
        # As a matrix: TensorFlow multiplies three axes by two several times more slowly.
        rows = ops.reshape(ops.cast(vectors, self.compute_dtype), (-1, self.dim))
        logits = projections.product(rows, ops.transpose(table))
        return ops.reshape(logits, (*ops.shape(vectors)[:-1], self.vocabulary_size))

    def _logits_shape(self, vectors):
        *rest, features = tuple(vectors.shape) or (None,)
        if features != self.dim:
            raise ValueError(
                f"`inputs` must be vectors (..., {self.dim}) with `reverse=True`. "
                f"Received: inputs.shape={tuple(vectors.shape)}"
            )
        return (*rest, self.vocabulary_size)

    def compute_mask(self, inputs, previous_mask=None):
        # `call` already sets the mask of its output; this is for symbolic inputs.
        if self.mask_zero and "int" in keras.backend.standardize_dtype(inputs.dtype):
            return ops.not_equal(inputs, 0)
        return previous_mask

    def compute_output_spec(self, inputs, reverse=False):
        shape = self._logits_shape(inputs) if reverse else (*inputs.shape, self.dim)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return (*inputs_shape, self.dim)
