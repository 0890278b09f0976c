"""Masks named as in other libraries, and of other lengths: layers that are not of one sequence."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences.masks import carry
from tests.contract import places, registry

X = np.zeros((registry.B, registry.T, registry.D), "float32")
NAMED = [
    *("AttentionPooling", "FeedForwardAttention", "ClassToken", "AttentionRNN"),
    *("MultiHeadAttention", "TransformerBlock"),
]


@pytest.mark.parametrize("name", NAMED)
def test_the_right_name_is_said(name):
    entry = registry.ENTRIES[name]
    with pytest.raises(TypeError, match=rf"{name} takes no `padding_mask`.*`(query_)?mask` \(B, "):
        (entry.call or places.simply)(entry.make(), X, padding_mask=X[..., 0] == 0)
    if name == "AttentionPooling":
        with pytest.raises(ValueError, match="`mask` must be boolean"):
            entry.make()(X, mask=X[..., 0] - 1e9)


def symbol(*shape, dtype="float32"):
    return keras.KerasTensor(shape, dtype)


OTHER_IDS = symbol(3, 7, dtype="int32")
X6, X7, IMAGES = symbol(3, 6, 8), symbol(3, 7, 8), symbol(3, 6, 4, 3)
OF_SIX, OF_SEVEN = [(3, 7), (4, 6), (3,)], [(3, 6), (4, 7), (3,)]
OF_IMAGES = [(3, 6, 5), (3, 7, 4), (4, 6, 4), (3, 7)]
# A call with symbols and masks, and for each mask the axes that it cannot have. `tests/contract`
# has masks of one sequence of tokens.
SYMBOLS = {
    "PointerHead": (
        lambda **masks: ka.PointerHead()(X6, X7, **masks),
        {"query_mask": OF_SIX, "memory_mask": OF_SEVEN, "attention_mask": [(7, 6), (3, 1, 6, 7)]},
    ),
    "PointerGenerator": (
        lambda **masks: ka.PointerGenerator(8)(X6, X6, symbol(3, 6, 7), OTHER_IDS, **masks),
        {"source_mask": OF_SEVEN},
    ),
    "PatchEmbedding": (
        lambda **masks: ka.PatchEmbedding(2, 4, data_format="channels_last")(IMAGES, **masks),
        {"mask": OF_IMAGES},
    ),
    "PatchEmbedding-channels_first": (
        lambda **masks: ka.PatchEmbedding(2, 4, data_format="channels_first")(
            symbol(3, 3, 6, 4), **masks
        ),
        {"mask": OF_IMAGES},
    ),
    "PatchMerging": (lambda **masks: ka.PatchMerging()(IMAGES, **masks), {"mask": OF_IMAGES}),
    "Embeddings": (
        lambda **masks: ka.Encoder(
            [ka.TransformerBlock(8, 2)],
            ka.Embeddings(ka.PatchEmbedding(2, 8, data_format="channels_last")),
        )(IMAGES, **masks),
        {"mask": OF_IMAGES},
    ),
    "Attention-listed": (
        lambda **masks: ka.Attention(2, 4)([X6, X7], **{n: [m, None] for n, m in masks.items()}),
        {"mask": OF_SIX},
    ),
    "Logits": (
        lambda mask: ka.Logits(4, tied=False)(carry(symbol(3, 6, 8), mask)),
        {"mask": OF_SIX[:2]},
    ),
    "Logits-pooled": (
        lambda mask: ka.Logits(4, tied=False, pooling="last")(carry(symbol(3, 6, 8), mask)),
        {"mask": OF_SIX[:2]},
    ),
}


@pytest.mark.parametrize("name", SYMBOLS)
def test_a_mask_of_another_length_is_an_error_where_a_model_is_made(name):
    call, refused = SYMBOLS[name]
    for mask, shapes in refused.items():
        for shape in shapes:
            with pytest.raises(ValueError, match="mask"):
                call(**{mask: symbol(*shape, dtype="bool")})
