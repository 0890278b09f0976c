"""`Encoder`: a stack of blocks in which every token sees all others."""

from __future__ import annotations

from keras_attention.hints import Positions, Tensor, Tensors
from keras_attention.models.stack import Stack


class Encoder(Stack):
    """A Transformer encoder (Vaswani et al. 2017; BERT): embeddings, blocks, norm, logits.

    A `keras.Model`: train it as it is, or call it in another model.

    Args:
        blocks: the `TransformerBlock`s, each with options of its own. A position such as
            `RelativeBias` that is given to several blocks is one table for all of them; a block
            that is listed several times shares its weights (ALBERT).
        embeddings: an `Embeddings`, or None if the inputs are vectors.
        final_norm: a norm after the last block, which pre-norm blocks need; or None.
        logits: `Logits`, such as those of a masked language model, or None.
        metadata: anything ready for JSON that is saved with the model, such as where it came from.
        **kwargs: `name`, `dtype`, `trainable` of any Keras layer.

    Call arguments:
        inputs: integers (B, T); or vectors (B, T, D) without `embeddings`.
        types: integers (B, T), token types; needs `Embeddings(types=…)`.
        mask: boolean (B, T), True = a real token, or of the inputs where they have another shape,
            such as pixels; combined with the masks that inputs and embeddings carry.
        attention_mask, segment_ids: as in `TransformerBlock`.
        positions: how embeddings and blocks count tokens: "tokens", which is the default, by their
            rank among the real tokens of their row (of their text, with `segment_ids`), so that
            padding changes nothing, wherever it is; "places", by their index; or integers (T,) or
            (B, T). If the embeddings or a block have positions or a pattern of a grid, all cells
            are counted instead of tokens, since they stay where they are.
        training: whether to apply dropout.

    Returns:
        (B, T, D), or logits (B, T, vocabulary_size), carrying the mask.

    Raises:
        TypeError: a part is not of its class.
        ValueError: tied logits without embeddings; or as the parts.

    Example:

    >>> import keras
    >>> from keras_attention import Embeddings, Encoder, ScaledEmbedding, TransformerBlock
    >>> encoder = Encoder(
    ...     [TransformerBlock(32, num_heads=2) for _ in range(2)],
    ...     Embeddings(ScaledEmbedding(100, 16, mask_zero=True)),
    ... )
    >>> encoder(keras.ops.convert_to_tensor([[5, 7, 0]])).shape
    (1, 3, 16)
    """

    def build(self, inputs_shape):  # type: ignore[override]
        super().build(inputs_shape)

    def call(
        self,
        inputs: Tensor,
        types: Tensor | None = None,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positions: Positions | None = None,
        segment_ids: Tensors | None = None,
        training: bool | None = None,
    ) -> Tensor:
        return self._read(
            inputs, None, types, mask, None, attention_mask, positions, segment_ids, None, training
        )
