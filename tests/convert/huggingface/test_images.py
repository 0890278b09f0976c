"""Encoders of images of `transformers`, and CLIP's towers, beside what all models do."""

import keras
import numpy as np
import pytest

from keras_attention import Embeddings, Encoder, LearnedGridEmbedding, convert
from tests.convert.huggingface import models
from tests.convert.huggingface.models import FAMILIES, TOLERANCE, case, numpy, transformers


def test_the_vision_tower_gives_the_pooled_output(folder):
    cls, fields = case("clip_vision_model")
    made = folder(cls, **fields)
    expected = models.call(made.theirs, **models.arrays(made.theirs)).pooler_output
    found = made.ours(models.images(made.theirs.config))[:, 0]
    assert models.difference(found, expected) <= TOLERANCE


@pytest.mark.parametrize("name", ["ViTModel", "dinov2"])
def test_images_of_another_size(name, folder):
    """The same parts, with a table of positions that is interpolated."""
    cls, fields = case(name)
    made, size = folder(cls, **{**fields, "image_size": 20}), (7, 4)
    model = made.ours
    images = np.random.default_rng(0).normal(size=(2, 28, 16, 2)).astype("float32")
    table = LearnedGridEmbedding((5, 5), prefix=1, size=size)
    table.build((None, 1 + size[0] * size[1], fields["hidden_size"]))
    table.set_weights(model.embeddings.positions.get_weights())
    tokens = keras.Sequential(model.embeddings.tokens.layers)
    larger = Encoder(model.blocks, Embeddings(tokens, table), model.final_norm, model.logits)
    # DINOv2 has no such argument: it always interpolates.
    given = {} if name == "dinov2" else {"interpolate_pos_encoding": True}
    given["pixel_values"] = images.transpose(0, 3, 1, 2).copy()
    expected = models.call(made.theirs, **given).last_hidden_state
    assert models.difference(larger(images), expected) <= TOLERANCE


@pytest.mark.parametrize("part", ["text", "vision"])
def test_a_tower_of_both(part, tmp_path):
    """As a model of its own, which is written as one too."""
    towers = {f"{x}_config": FAMILIES[f"clip_{x}_model"][1] for x in ("text", "vision")}
    both = models.write(tmp_path, transformers.CLIPModel, {**towers, "projection_dim": 6}).theirs
    model = convert.from_huggingface(tmp_path, part=part)
    convert.to_huggingface(model, tmp_path / "back")
    cls = getattr(transformers, f"CLIP{part.title()}ModelWithProjection")
    theirs = cls.from_pretrained(tmp_path / "back").eval()
    inputs, given = models.ours_of(model, theirs)
    row = models.alone(theirs, 0)
    get = both.get_text_features if part == "text" else both.get_image_features
    expected = get(**{k: models.tensor(x) for k, x in row.items()}).pooler_output
    found = numpy(models.through_a_file(model, tmp_path)(inputs[:1], **given))
    found = found[:, -1] if part == "text" else found[:, 0]
    assert models.difference(found, expected) <= TOLERANCE
    assert models.difference(found, models.states_and_logits(theirs, row)[1]) <= TOLERANCE


@pytest.mark.parametrize("name", ["vit", "deit", "dinov2", "clip_vision_model", "SwinModel"])
def test_hidden_patches_move_no_others(name, folder):
    cls, fields = case(name)
    made = folder(cls, **fields)
    model, images = made.ours, models.images(made.theirs.config)
    while isinstance(first := getattr(model.embeddings.tokens, "layers", [None])[0], Encoder):
        model = first
    expected = model.embeddings(images)
    mask = np.random.default_rng(1).random(expected.shape[:2]) < 0.6
    for block in model.blocks:
        expected = block(expected, mask=mask)
    if model.final_norm is not None:
        expected = model.final_norm(expected)
    if getattr(model, "logits", None) is not None:
        expected = model.logits(expected)
    found = model(images, mask=mask)
    np.testing.assert_allclose(numpy(found)[mask], numpy(expected)[mask], atol=1e-5)
