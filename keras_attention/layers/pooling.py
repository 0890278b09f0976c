"""Summaries of a sequence: by attention from learned queries, or of tokens put before it."""

from typing import Any

import keras
from keras import ops

from keras_attention import normalizations, saving, scores
from keras_attention.core.hints import Activation, Initializer, Tensor, Tensors
from keras_attention.layers.attention import Attention
from keras_attention.sequences import inputs, masks, sequence, shapes


class AttentionPooling(saving.ConfigurableLayer):
    r"""Reduces a sequence to one vector, or a few, by attention from learned queries.

    `output = Σ_s weight[s] · x[s]`, with `weight = softmax(score(q, x))` and `q` a weight of the
    layer (the word-level context vector of Yang et al. 2016, section 2.2). Padding is ignored.

    Args:
        num_queries: None for one query and output (B, D), or their number for (B, num_queries, D).
        num_heads, key_dim, value_dim, score, normalization, dropout, seed: as in `Attention`;
            without `key_dim` the inputs themselves are compared and summed.
        query_initializer: of the queries.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, S, D).
        mask: boolean (B, S), True = a real token; combined with the mask that `x` carries.
        return_attention_scores: whether to return `(output, scores)`, scores
            (B, num_heads, num_queries or 1, S) being the weights before dropout.
        training: whether to apply dropout.
        positions: how the score `Location` counts: "places", which is the default, or "tokens".

    Returns:
        (B, D), or (B, num_queries, D); with `key_dim`, `num_heads · value_dim` instead of D. It
        carries no mask. A row of padding gives zeros.

    Raises:
        ValueError, TypeError: as `Attention`.

    >>> import keras, keras_attention
    >>> x = keras.layers.Embedding(10, 32, mask_zero=True)(keras.ops.ones((2, 5), "int32"))
    >>> keras_attention.AttentionPooling()(x).shape
    (2, 32)
    """

    _masks = "`mask` (B, S) for padding"

    # Whether queries are learned; zeros for scores that do not depend on them.
    learns_queries = True

    def __init__(
        self,
        num_queries: int | None = None,
        num_heads: int = 1,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: scores.ScoreLike = "scaled_dot",
        normalization: normalizations.NormalizationLike = "softmax",
        dropout: float = 0.0,
        query_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.num_queries = shapes.check_optional_count("num_queries", num_queries)
        self.value_dim = shapes.check_optional_count("value_dim", value_dim)
        self.query_initializer = keras.initializers.get(query_initializer)
        options: dict[str, Any] = {"name": "attention", "dtype": self.dtype_policy}
        options |= {"dropout": dropout, "seed": seed}
        attention = Attention(num_heads, key_dim, value_dim, score, normalization, **options)
        names = "num_heads", "key_dim", "score", "normalization", "dropout", "seed"
        self._keep_of(attention, *names)
        self._attention = attention

    def build(self, x_shape, mask_shape=None):
        query_shape = self._query_shape(x_shape)
        if self.learns_queries:
            self.query = self.add_weight(query_shape[1:], self.query_initializer, name="query")
        self._attention.build(query_shape, x_shape)

    def _query_shape(self, x_shape):
        shapes.check_sequence(x_shape)
        return (x_shape[0], self.num_queries or 1, x_shape[-1])

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        positions: str | None = None,
    ) -> Tensors:
        mask = masks.padding(x, mask)
        queries = (ops.shape(x)[0], *self._query_shape(x.shape)[1:])
        if self.learns_queries:
            query = ops.broadcast_to(ops.cast(self.query, self.compute_dtype), queries)
        else:
            query = ops.zeros(queries, self.compute_dtype)
        given = {"training": training, "positions": sequence.only_word(positions)}
        given |= {"value_mask": mask, "return_attention_scores": True}
        output, weights = self._attention(query, x, **given)
        output = output if self.num_queries else ops.squeeze(output, axis=1)
        return (output, weights) if return_attention_scores else output

    def compute_mask(self, x, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape, mask_shape=None):
        shape = self._attention.compute_output_shape(self._query_shape(x_shape), x_shape)
        return shape if self.num_queries else (shape[0], shape[2])

    def compute_output_spec(self, *args, **kwargs):
        given = inputs.arguments(self.call, *args, **kwargs)
        masks.padding(given.x, given.mask)
        sequence.only_word(given.positions)
        shape = given.x.shape
        output = keras.KerasTensor(self.compute_output_shape(shape), dtype=self.compute_dtype)
        shape = (shape[0], self.num_heads, self.num_queries or 1, shape[1])
        scores = keras.KerasTensor(shape, dtype=self.compute_dtype)
        return (output, scores) if given.return_attention_scores else output


class FeedForwardAttention(AttentionPooling):
    r"""Feed-forward attention of Raffel & Ellis 2015: the weighted mean of a sequence.

    `e_s = a(x_s)`, `weight = softmax(e)`, `output = Σ_s weight[s] · x_s` (equations 5 to 7), where
    `a(x) = activation(w · x + b)`, or with `units` `a(x) = v · activation(W x + b)`.
    `AttentionPooling` without a query, with a score of the keys alone. Padding is ignored.

    Args:
        units: None, or the size of a hidden layer.
        activation: of the score, or of its hidden layer.
        normalization, dropout, seed: as in `AttentionPooling`.
        kernel_initializer: of w, or of W and v.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments, results and errors are those of `AttentionPooling`; `units` must be a positive
    integer.

    >>> import keras, keras_attention
    >>> x = keras.layers.Embedding(10, 32, mask_zero=True)(keras.ops.ones((2, 5), "int32"))
    >>> keras_attention.FeedForwardAttention()(x).shape
    (2, 32)
    """

    _fixed_arguments = (
        "num_queries", "num_heads", "key_dim", "value_dim", "score", "query_initializer",
    )  # fmt: skip

    learns_queries = False

    def __init__(
        self,
        units: int | None = None,
        activation: Activation = "tanh",
        normalization: normalizations.NormalizationLike = "softmax",
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ):
        saving.check_free(type(self), kwargs)
        score = scores.KeyOnly(units, activation, kernel_initializer=kernel_initializer)
        kwargs |= {"normalization": normalization, "dropout": dropout, "seed": seed}
        super().__init__(score=score, **kwargs)
        self._keep_of(score, "units", "activation", "kernel_initializer")


class ClassToken(saving.ConfigurableLayer):
    """Prepends learned tokens to a sequence: one is BERT's [CLS] (Devlin et al. 2019).

    After attention over the longer sequence, `x[:, 0]` is a summary of it. Several are a memory
    that all positions write to and read from (Burtsev et al. 2020), called registers in images
    (Darcet et al. 2024). Tokens are never masked, even if the sequence is left-padded or empty.

    Args:
        initializer, num_tokens: of the tokens, and how many.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (B, T, D).
        mask: boolean (B, T), True = a real token; combined with the mask that `x` carries.

    Returns:
        (B, num_tokens + T, D), carrying the mask with True before it.

    Raises:
        ValueError: a number or a shape is not as described.

    >>> import keras, keras_attention
    >>> x = keras.layers.Embedding(10, 8, mask_zero=True)(keras.ops.array([[3, 5, 0], [7, 1, 4]]))
    >>> x = keras_attention.ClassToken()(x)
    >>> x = keras_attention.TransformerBlock(intermediate_dim=16, num_heads=2)(x)
    >>> x.shape, x[:, 0].shape
    ((2, 4, 8), (2, 8))
    """

    _masks = "`mask` (B, S) for padding"

    def __init__(
        self, initializer: Initializer = "glorot_uniform", num_tokens: int = 1, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.initializer = keras.initializers.get(initializer)
        self.num_tokens = shapes.check_count("num_tokens", num_tokens)

    def build(self, x_shape, mask_shape=None):
        shapes.check_sequence(x_shape)
        shape = (1, self.num_tokens, x_shape[-1])
        self.token = self.add_weight(shape, self.initializer, name="token")

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
