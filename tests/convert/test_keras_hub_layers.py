"""Layers of KerasHub converted: the new layer gives what the old one gives."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import convert
from tests.arrays import numpy, random
from tests.convert import both


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("normalize_first", [False, True], ids=["post", "pre"])
def test_transformer_blocks(normalize_first, kind, tmp_path):
    options = {"dropout": 0.1, "activation": "gelu", "layer_norm_epsilon": 1e-3, "name": "block"}
    options["normalize_first"] = normalize_first
    name = "TransformerEncoder" if kind == "encoder" else "TransformerDecoder"
    theirs = getattr(both.keras_hub.layers, name)(12, 2, **options)
    inputs = [both.X, both.MEMORY] if kind == "cross" else [both.X]
    theirs(*inputs)
    both.randomize(theirs)
    ours = convert.from_keras_hub(theirs)
    expected = theirs(*inputs)
    both.close(ours(*inputs), expected)
    masks, our_masks = {"decoder_padding_mask": both.PADDING}, {"mask": both.PADDING}
    if kind == "encoder":
        pairs = both.PAIRS[:, :, : both.T]
        masks = {"padding_mask": both.PADDING, "attention_mask": pairs}
        our_masks["attention_mask"] = pairs
    elif kind == "cross":
        masks["encoder_padding_mask"] = our_masks["context_mask"] = both.MEMORY_PADDING
    output, masked = numpy(ours(*inputs, **our_masks)), numpy(theirs(*inputs, **masks))
    both.close(output[both.PADDING], masked[both.PADDING])
    both.close(both.reloaded(ours, tmp_path, *(x.shape for x in inputs))(*inputs), expected)
    assert (ours.dropout, ours.name) == (0.1, "block")


def test_absolute_positions_of_keras_hub():
    x = random(both.B, both.T, 7)
    theirs = both.keras_hub.layers.SinePositionEncoding(max_wavelength=500)
    ours = convert.from_keras_hub(theirs)
    both.close(ours(x, start_index=3), theirs(x, start_index=3))
    theirs = both.keras_hub.layers.PositionEmbedding(9)
    expected = theirs(x, start_index=3)
    both.close(convert.from_keras_hub(theirs)(x, start_index=3), expected, 0)


def test_tokens_and_positions_of_keras_hub(tmp_path):
    ids = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    theirs = both.keras_hub.layers.TokenAndPositionEmbedding(10, 9, both.D, mask_zero=True)
    with pytest.warns(UserWarning, match="does not support masking"):
        expected = theirs(ids)
    ours = convert.from_keras_hub(theirs)
    both.close(ours(ids), expected, 1e-6)
    symbol = keras.Input((None,), dtype="int32")
    model = keras.Model(symbol, ka.TransformerBlock(12, 2)(ours(symbol)))
    model.save(tmp_path / "model.keras")
    both.close(keras.saving.load_model(tmp_path / "model.keras")(ids), model(ids), 1e-6)
    # The block saw the mask.
    longer = np.pad(ids, [(0, 0), (0, 3)])
    both.close(numpy(model(longer))[:, : both.T][ids != 0], numpy(model(ids))[ids != 0])


ROTARY = {
    "plain": {"max_wavelength": 500},
    "linear": {"scaling_factor": 4.0},
    "yarn": {"rope_type": "yarn", "scaling_factor": 8.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("kwargs", ROTARY.values(), ids=ROTARY)
def test_rotary_embedding(kwargs):
    heads = random(both.B, both.T, 2, 16)
    theirs = both.keras_hub.layers.RotaryEmbedding(**kwargs)
    ours = convert.from_keras_hub(theirs)
    rotated, _ = ours.encode(
        heads, heads, both.ops.arange(3, 3 + both.T), both.ops.arange(3, 3 + both.T)
    )
    both.close(rotated, theirs(heads, start_index=3))
