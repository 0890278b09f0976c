"""Layers of KerasHub converted: the new layer gives what the old one gives."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import convert
from tests.arrays import random
from tests.convert.both import (
    MEMORY,
    MEMORY_PADDING,
    PADDING,
    PAIRS,
    B,
    D,
    T,
    X,
    array,
    close,
    keras_hub,
    ops,
    randomize,
    reloaded,
)


@pytest.mark.parametrize("normalize_first", [False, True], ids=["post", "pre"])
def test_transformer_encoder(normalize_first, tmp_path):
    theirs = keras_hub.layers.TransformerEncoder(
        12,
        2,
        dropout=0.1,
        activation="gelu",
        layer_norm_epsilon=1e-3,
        normalize_first=normalize_first,
        name="encoder",
    )
    theirs(X)
    randomize(theirs)
    ours = convert.from_keras_hub(theirs)
    close(ours(X), theirs(X))
    pairs = PAIRS[:, :, :T]
    expected = array(theirs(X, padding_mask=PADDING, attention_mask=pairs))
    output = array(ours(X, mask=PADDING, attention_mask=pairs))
    close(output[PADDING], expected[PADDING])
    close(reloaded(ours, tmp_path, X.shape)(X), theirs(X))
    assert (ours.dropout, ours.name) == (0.1, "encoder")


@pytest.mark.parametrize("cross", [False, True], ids=["alone", "cross"])
@pytest.mark.parametrize("normalize_first", [False, True], ids=["post", "pre"])
def test_transformer_decoder(normalize_first, cross, tmp_path):
    theirs = keras_hub.layers.TransformerDecoder(12, 2, normalize_first=normalize_first)
    memory = [MEMORY] if cross else []
    theirs(X, *memory)
    randomize(theirs)
    ours = convert.from_keras_hub(theirs)
    expected = theirs(X, *memory)
    close(ours(X, *memory), expected)
    masks = {"encoder_padding_mask": MEMORY_PADDING} if cross else {}
    theirs_masked = array(theirs(X, *memory, decoder_padding_mask=PADDING, **masks))
    masks = {"context_mask": MEMORY_PADDING} if cross else {}
    close(array(ours(X, *memory, mask=PADDING, **masks))[PADDING], theirs_masked[PADDING])
    if cross and normalize_first:
        shapes = [X.shape, MEMORY.shape]
        close(reloaded(ours, tmp_path, *shapes)(X, *memory), expected)


def test_transformer_decoder_step_by_step():
    theirs = keras_hub.layers.TransformerDecoder(12, 2)
    expected = array(theirs(X, MEMORY))
    ours = convert.from_keras_hub(theirs)
    cache, context = ours.make_cache(B, T), ours.cache_context(MEMORY)
    for t in range(T):
        output, cache = ours(X[:, t : t + 1], context, cache=cache)
        close(output, expected[:, t : t + 1])


def test_absolute_positions_of_keras_hub():
    x = random(B, T, 7)
    theirs = keras_hub.layers.SinePositionEncoding(max_wavelength=500)
    ours = convert.from_keras_hub(theirs)
    close(ours(x, start_index=3), theirs(x, start_index=3))
    theirs = keras_hub.layers.PositionEmbedding(9)
    expected = theirs(x, start_index=3)
    close(convert.from_keras_hub(theirs)(x, start_index=3), expected, 0)


def test_tokens_and_positions_of_keras_hub(tmp_path):
    ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    theirs = keras_hub.layers.TokenAndPositionEmbedding(10, 9, D, mask_zero=True)
    with pytest.warns(UserWarning, match="does not support masking"):
        expected = theirs(ids)
    ours = convert.from_keras_hub(theirs)
    close(ours(ids), expected, 1e-6)
    symbol = keras.Input((None,), dtype="int32")
    model = keras.Model(symbol, ka.TransformerBlock(12, 2)(ours(symbol)))
    model.save(tmp_path / "model.keras")
    close(keras.saving.load_model(tmp_path / "model.keras")(ids), model(ids), 1e-6)
    # The block saw the mask.
    longer = np.pad(ids, [(0, 0), (0, 3)])
    close(array(model(longer))[:, :T][ids != 0], array(model(ids))[ids != 0])


ROTARY = {
    "plain": {"max_wavelength": 500},
    "linear": {"scaling_factor": 4.0},
    "yarn": {"rope_type": "yarn", "scaling_factor": 8.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kwargs", ROTARY.values(), ids=ROTARY)
def test_rotary_embedding(kwargs):
    heads = random(B, T, 2, 16)
    theirs = keras_hub.layers.RotaryEmbedding(**kwargs)
    ours = convert.from_keras_hub(theirs)
    rotated, _ = ours.encode(heads, heads, ops.arange(3, 3 + T), ops.arange(3, 3 + T))
    close(rotated, theirs(heads, start_index=3))
    layer = ka.SelfAttention(2, 16, position=ours)
    assert tuple(layer(X).shape) == (B, T, 32)
