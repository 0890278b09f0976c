"""`Embeddings`, before the first block of a Transformer, and `Logits`, after its last."""

from typing import Any

import keras
from keras import ops

from keras_attention import saving
from keras_attention.core import parts
from keras_attention.core.hints import Initializer, Positions, Tensor
from keras_attention.layers.embeddings.grid_embedding import GridEmbedding
from keras_attention.layers.embeddings.patches import PatchEmbedding, PatchMerging
from keras_attention.layers.embeddings.position_embedding import PositionEmbedding
from keras_attention.layers.heads import projections
from keras_attention.layers.heads.projections import Dropout
from keras_attention.sequences import inputs, masks, shapes


class Embeddings(saving.ConfigurableLayer):
    """The vectors of tokens, with positions and token types added.

    `projection(dropout(norm(token_projection(tokens(x)) + types(t) + positions(p))))`, each part
    but `tokens` optional.

    Args:
        tokens: the layer of the inputs: `ScaledEmbedding(vocabulary_size, dim, mask_zero=True)`, a
            `keras.layers.Embedding`, or any other to (B, T, D), such as patches of images.
        positions: None, or a layer such as `LearnedPositionEmbedding`, `SinCosPositionEmbedding`
            or, of the patches of images, `LearnedGridEmbedding` or `SinCosGridEmbedding`.
        types: None, or a `keras.layers.Embedding` of token types, such as BERT's two sentences.
        norm: None, or a layer such as `keras.layers.LayerNormalization`.
        dropout: rate of the dropout.
        projection: None, or a layer to the features of the blocks (ALBERT).
        token_projection: the same before positions and types are added (OPT-350m).
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs: what `tokens` takes; integers (B, T).
        types: integers (B, T), the token types; None for 0.
        positions: as those of the layer of positions: "places", which is the default, "tokens", or
            integers (T,) or (B, T).
        training: whether to apply dropout.

    Returns:
        (B, T, D), carrying the mask of the tokens' vectors.

    Raises:
        TypeError: a part is not a layer of its kind.
        ValueError: token types are given without a layer of types, or `dropout` is no rate.

    >>> import keras, keras_attention
    >>> tokens = keras_attention.ScaledEmbedding(100, 16, mask_zero=True)
    >>> positions = keras_attention.LearnedPositionEmbedding(max_length=32)
    >>> embeddings = keras_attention.Embeddings(tokens, positions)
    >>> embeddings(keras.ops.convert_to_tensor([[5, 7, 0]])).shape
    (1, 3, 16)
    """

    def __init__(
        self,
        tokens: keras.layers.Layer,
        positions: keras.layers.Layer | None = None,
        types: keras.layers.Layer | None = None,
        norm: keras.layers.Layer | None = None,
        dropout: float = 0.0,
        projection: keras.layers.Layer | None = None,
        token_projection: keras.layers.Layer | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check = saving.check_layer
        self.tokens = check("tokens", tokens)
        self.positions = check("positions", positions, PositionEmbedding, optional=True)
        self.types = check("types", types, optional=True)
        self.norm = check("norm", norm, optional=True)
        self.dropout = shapes.check_rate("dropout", dropout)
        self.projection = check("projection", projection, optional=True)
        self.token_projection = check("token_projection", token_projection, optional=True)
        self._dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy)

    def build(self, inputs_shape):
        shape, first = inputs_shape, (self.tokens, self.token_projection, self.types)
        for layer in (*first, self.positions, self.norm, self.projection):
            if layer is not None and not layer.built:
                layer.build(inputs_shape if layer is self.types else shape)
            if layer is not None and layer is not self.types:
                shape = layer.compute_output_shape(shape)

    dropout_layer = parts.part("_dropout_layer", "The layer of the dropout.")

    @property
    def table(self) -> Tensor:
        """The vectors of all tokens, (vocabulary_size, D)."""
        return self.tokens.embeddings

    def call(
        self,
        inputs: Tensor,
        types: Tensor | None = None,
        positions: Positions | None = None,
        training: bool | None = None,
    ) -> Tensor:
        self._check_types(types)
        # Positions on a grid are those of the image, whatever its size.
        on_grid = isinstance(self.positions, GridEmbedding)
        x, sizes = _with_grid(self.tokens, inputs) if on_grid else (self.tokens(inputs), None)
        mask = masks.implicit(x)
        # Keras carries the mask of the inputs on, which may have another shape than the vectors.
        if mask is not None and not masks.may_fit(mask, x.shape[1]):
            x, mask = ops.copy(x), None
        if self.token_projection is not None:
            x = self.token_projection(x)
        if self.types is not None:
            x = x + self.types(ops.zeros_like(inputs) if types is None else types)
        if self.positions is not None:
            x, whole = masks.carry(x, mask), positions is None and len(x.shape) == 3
            if sizes is not None and whole:
                x = self.positions.on_grid(x, sizes)
            else:
                x = self.positions(x, positions=positions)
        if self.norm is not None:
            x = self.norm(x)
        x = self._dropout_layer.drop(x, training)
        if self.projection is not None:
            x = self.projection(x)
        return masks.carry(x, mask)

    def _check_types(self, types):
        if types is not None and self.types is None:
            raise ValueError(
                "`types` are given to a layer that was made without `types`. "
                f"Received: types.shape={tuple(types.shape)}"
            )

    def compute_mask(self, inputs, previous_mask=None):
        mask = _mask_after(self.tokens, inputs, previous_mask)
        length = self.compute_output_shape(inputs.shape)[1]
        return mask if mask is not None and masks.may_fit(mask, length) else None

    def compute_output_shape(self, inputs_shape, types_shape=None, positions_shape=None):
        shape = self.tokens.compute_output_shape(inputs_shape)
        for layer in (self.token_projection, self.positions, self.projection):
            shape = shape if layer is None else layer.compute_output_shape(shape)
        return shape

    def compute_output_spec(self, inputs, types=None, positions=None, training=None):
        self._check_types(types)
        if self.positions is not None and positions is not None:
            vectors = keras.KerasTensor(self.tokens.compute_output_shape(inputs.shape))
            self.positions.compute_output_spec(vectors, positions=positions)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)


def _with_grid(layer, x, grid=None):
    """The result of a layer, and the sizes of the grid that it has, or had before it was flat."""
    if isinstance(layer, keras.Sequential):
        for part in layer.layers:
            x, grid = _with_grid(part, x, grid)
        return x, grid
    if isinstance(layer, (PatchEmbedding, PatchMerging)):
        grid = layer.grid_of(x) if isinstance(layer, PatchEmbedding) else None
    x = layer(x)
    return x, tuple(ops.shape(x)[1:-1]) if len(x.shape) > 3 else grid


def _mask_after(layer, inputs, mask):
    """The mask after a layer; that of a `keras.Sequential`, which Keras lacks, by its parts."""
    if isinstance(layer, keras.Sequential):
        for part in layer.layers:
            mask = _mask_after(part, inputs, mask)
        return mask
    return layer.compute_mask(inputs, mask) if layer.supports_masking else None


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
        pooling: None for the scores of each token; or "first", "last" or "mean" for those of each
            row, as of a classifier of texts: of its first or last real token by the mask, or of
            their mean. It comes before `transform`, and needs `x` of three axes.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        x: (..., D).
        table: the embeddings, (vocabulary_size, D), if tied.

    Returns:
        (..., vocabulary_size), carrying the mask of `x`; or (B, vocabulary_size) with `pooling`,
        0s in place of the vector of a row without a real token.

    Raises:
        ValueError: a table is given to a layer that is not tied, or missing; `x` to be pooled does
            not have three axes; a number or a name is not as described.
        TypeError: `transform` is not a layer.

    >>> import keras, keras_attention
    >>> x, table = keras.random.normal((2, 5, 16)), keras.random.normal((100, 16))
    >>> keras_attention.Logits(100)(x, table).shape
    (2, 5, 100)
    """

    def __init__(
        self,
        vocabulary_size: int,
        tied: bool = True,
        use_bias: bool = False,
        scale: float = 1.0,
        soft_cap: float | None = None,
        transform: keras.layers.Layer | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        pooling: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = shapes.check_count("vocabulary_size", vocabulary_size)
        self.pooling = shapes.check_choice("pooling", pooling, (None, "first", "last", "mean"))
        self.tied = shapes.check_flag("tied", tied)
        self.use_bias = shapes.check_flag("use_bias", use_bias)
        self.scale = shapes.check_positive("scale", scale)
        self.soft_cap = shapes.check_optional_positive("soft_cap", soft_cap)
        self.transform = saving.check_layer("transform", transform, optional=True)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, x_shape, table_shape=None):
        x_shape = self._pooled_shape(x_shape)
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
        if self.pooling is not None:
            self._pooled_shape(x.shape)
            x, mask = self._pooled(x, mask), None
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
            raise ValueError(
                "`Logits` take a `table` if, and only if, they are tied. Received: "
                f"tied={self.tied}, and {'no' if table is None else 'a'} `table`"
            )

    def _tied(self, x, table):
        # As a matrix: TensorFlow multiplies three axes by two several times more slowly.
        rows = ops.reshape(x, (-1, x.shape[-1]))
        logits = projections.product(rows, ops.transpose(ops.cast(table, x.dtype)))
        logits = ops.reshape(logits, (*ops.shape(x)[:-1], self.vocabulary_size))
        return logits + ops.cast(self.bias, logits.dtype) if self.use_bias else logits

    def _pooled(self, x, mask):
        """The vectors (B, D) of the rows of `x`, which is 0 where it is masked."""
        if mask is None:
            return {"first": x[:, 0], "last": x[:, -1]}.get(self.pooling, ops.mean(x, axis=1))
        counts = ops.cumsum(ops.cast(mask, "int32"), axis=1)
        total = counts[:, -1:]
        if self.pooling == "mean":
            return ops.sum(x, axis=1) / ops.cast(ops.maximum(total, 1), x.dtype)
        chosen = counts == (1 if self.pooling == "first" else total)
        return ops.sum(x * ops.cast(chosen, x.dtype)[..., None], axis=1)

    def _pooled_shape(self, shape):
        if self.pooling is None:
            return shape
        if len(shape) != 3:
            raise ValueError(
                f"`Logits` with pooling={self.pooling!r} take `x` of the shape (B, T, D). "
                f"Received: x.shape={tuple(shape)}"
            )
        return (shape[0], shape[2])

    def compute_mask(self, inputs, previous_mask=None):
        mask = masks.passed_on(self, inputs, previous_mask)
        return mask if self.pooling is None else None

    def compute_output_spec(self, x, table=None):
        self._check(table)
        return keras.KerasTensor(self.compute_output_shape(x.shape), self.compute_dtype)

    def compute_output_shape(self, x_shape, table_shape=None):
        x_shape = self._pooled_shape(x_shape)
        if self.transform is not None:
            x_shape = self.transform.compute_output_shape(x_shape)
        return (*x_shape[:-1], self.vocabulary_size)
