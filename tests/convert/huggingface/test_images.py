"""Encoders of images of `transformers`, CLIP's text beside them, and ours with their weights."""

import keras
import numpy as np
import pytest

from keras_attention import Embeddings, Encoder, LearnedGridEmbedding, convert
from tests.arrays import numpy
from tests.convert.huggingface.sequences import (
    SIZES,
    assert_close,
    ids,
    original,
    outputs,
    pair,
    read_back,
    tensor,
    through_a_file,
)

IMAGES = {
    **dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4),
    **dict(image_size=[8, 12], patch_size=4, num_channels=2),
}
SQUARE = {**IMAGES, "image_size": 8}
DINO = {**SQUARE, "mlp_ratio": 2, "layerscale_value": 0.3}
del DINO["intermediate_size"]
SWIN = {
    **dict(embed_dim=8, depths=[3, 2, 1], num_heads=[2, 4, 2], window_size=4, mlp_ratio=1.5),
    **dict(image_size=[16, 64], patch_size=[1, 2], num_channels=2),
}
TEXT = {**SIZES, "eos_token_id": 49}
MODELS = {
    "ViTModel": IMAGES,
    "ViTForImageClassification": {**IMAGES, "num_labels": 5},
    "DeiTModel": IMAGES,
    "DeiTForImageClassification": {**IMAGES, "num_labels": 5},
    "Dinov2Model": DINO,
    "SwinModel": {**SWIN, "use_absolute_embeddings": True},
    "SwinForImageClassification": {**SWIN, "num_labels": 5},
    "CLIPVisionModel": SQUARE,
    "CLIPVisionModelWithProjection": {**SQUARE, "projection_dim": 6},
    "CLIPTextModel": TEXT,
    "CLIPTextModelWithProjection": {**TEXT, "projection_dim": 6},
}
TOKENS = ids(0, 3, 7)
TOKENS[:, -1] = 49  # The end of the text, where the original pools.


def given(name):
    """The input of the original, and ours."""
    if "Text" in name:
        return {"input_ids": TOKENS}, TOKENS
    size = MODELS[name]["image_size"]
    size = [size, size] if isinstance(size, int) else size
    images = np.random.default_rng(0).normal(size=(3, *size, 2)).astype("float32")
    return {"pixel_values": images.transpose(0, 3, 1, 2).copy()}, images


def output(original, name, theirs):
    found = outputs(original, **theirs)
    if name == "CLIPVisionModel":
        # The last norm, which it applies to the first alone.
        return original.post_layernorm(found.last_hidden_state).detach()
    if name.endswith("Classification"):
        return found.logits
    if name.endswith("Projection"):
        return found.text_embeds if "Text" in name else found.image_embeds
    return found.last_hidden_state


def chosen(found, name):
    """The vector of the whole, of ours."""
    if not name.endswith(("Projection", "Classification")):
        return found
    return found[:, -1] if "Text" in name else found[:, 0]


@pytest.mark.parametrize("name", MODELS)
def test_states_and_logits(name, pairs, measured):
    theirs, ours = given(name)
    both = pairs(name)
    found = assert_close(chosen(both.ours(ours), name), output(both.original, name, theirs))
    measured(both.ours, **{"states" if both.ours.logits is None else "logits": found})


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_written_back(name, pairs, fresh, measured, tmp_path):
    theirs, ours = given(name)
    both = pairs(name)
    saved = fresh.check(both.ours, tmp_path, ours)
    back = output(read_back(both.ours, both.original, tmp_path / "back"), name, theirs)
    back = assert_close(back, output(both.original, name, theirs), tolerance=1e-6)
    measured(both.ours, saved=saved, back=back)


def test_the_vision_tower_gives_the_pooled_output(pairs):
    both = pairs("CLIPVisionModel")
    theirs, ours = given("CLIPVisionModel")
    expected = outputs(both.original, **theirs).pooler_output
    assert_close(both.ours(ours)[:, 0], expected)


def test_clip_text_ignores_padding_after_it(pairs):
    both = pairs("CLIPTextModel")
    padded = np.pad(TOKENS, ((0, 0), (0, 3)))
    mask = np.arange(10) < 7
    found = both.ours(padded, mask=np.broadcast_to(mask, padded.shape))
    expected = outputs(both.original, input_ids=TOKENS).last_hidden_state
    assert_close(found[:, :7], expected)


@pytest.mark.parametrize("name", ["ViTForImageClassification", "Dinov2Model"])
def test_images_of_another_size(name, tmp_path):
    """The same parts, with a table of positions that is interpolated."""
    both = pair(tmp_path, name, {**MODELS[name], "image_size": 20})
    model, size = both.ours, (7, 4)
    images = np.random.default_rng(0).normal(size=(2, 28, 16, 2)).astype("float32")
    table = LearnedGridEmbedding((5, 5), prefix=1, size=size)
    table.build((None, 1 + size[0] * size[1], 16))
    table.set_weights(model.embeddings.positions.get_weights())
    tokens = keras.Sequential(model.embeddings.tokens.layers)
    embeddings = Embeddings(tokens, table)
    larger = Encoder(model.blocks, embeddings, model.final_norm, model.logits)
    theirs = {"pixel_values": images.transpose(0, 3, 1, 2).copy()}
    if name.startswith("ViT"):
        # DINOv2 has no such argument: it always interpolates.
        theirs["interpolate_pos_encoding"] = True
    assert_close(chosen(larger(images), name), output(both.original, name, theirs))


@pytest.mark.parametrize("part", ["text", "vision"])
def test_a_tower_of_both(part, tmp_path):
    """As a model of its own, which is written as one too."""
    fields = {"text_config": TEXT, "vision_config": SQUARE}
    both = original("CLIPModel", {**fields, "projection_dim": 6})
    both.save_pretrained(tmp_path / "both")
    model = convert.from_huggingface(tmp_path / "both", part=part)
    name = f"CLIP{part.title()}ModelWithProjection"
    theirs, ours = given(name)
    get = both.get_text_features if part == "text" else both.get_image_features
    expected = get(**{k: tensor(x) for k, x in theirs.items()}).pooler_output
    assert_close(chosen(through_a_file(model, tmp_path)(ours), name), expected)
    convert.to_huggingface(model, tmp_path / "back")
    alone = getattr(pytest.importorskip("transformers"), name).from_pretrained(tmp_path / "back")
    assert_close(chosen(model(ours), name), output(alone.eval(), name, theirs))


@pytest.mark.parametrize(
    "name", ["ViTModel", "DeiTModel", "Dinov2Model", "CLIPVisionModel", "SwinModel"]
)
def test_hidden_patches_move_no_others(name, pairs):
    model, (_, images) = pairs(name).ours, given(name)
    if name == "SwinModel":
        model = model.embeddings.tokens.layers[0]
        while hasattr(model.embeddings.tokens.layers[0], "blocks"):
            model = model.embeddings.tokens.layers[0]
    expected = model.embeddings(images)
    mask = np.random.default_rng(1).random(expected.shape[:2]) < 0.6
    for block in model.blocks:
        expected = block(expected, mask=mask)
    if model.final_norm is not None:
        expected = model.final_norm(expected)
    found = model(images, mask=mask)
    np.testing.assert_allclose(numpy(found)[mask], numpy(expected)[mask], atol=1e-5)
