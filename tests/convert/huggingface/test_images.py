"""Encoders of images of `transformers`, beside what all models do."""

import keras
import numpy as np
import pytest

from keras_attention import Embeddings, Encoder, LearnedGridEmbedding
from tests.convert.huggingface import models
from tests.convert.huggingface.models import TOLERANCE, case


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
