"""A step of training: gradients are those of `transformers`, through the tensors of the files."""

import keras
import numpy as np
import pytest

from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from tests.convert.huggingface import models
from tests.convert.huggingface.models import RIGHT, TARGET_MASK, case
from tests.gradients import weight_gradients


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_oss", "bert", "deberta-v2", "t5"])
def test_gradients(kind, folder):
    cls, fields = case(kind)
    made = folder(cls, **fields)
    inputs, given = models.ours_of(made.ours, made.theirs, RIGHT)
    theirs, real = {**models.arrays(made.theirs), "attention_mask": RIGHT}, RIGHT
    if kind == "t5":
        theirs, real = {**theirs, "decoder_attention_mask": TARGET_MASK}, TARGET_MASK
    labels = models.tokens(real.shape, 2)
    theirs["labels"] = np.where(real, labels, -100)
    made.theirs.zero_grad()
    made.theirs(**{name: models.tensor(x) for name, x in theirs.items()}).loss.backward()
    if kind in ("gpt2", "llama", "gpt_oss"):
        # Theirs compares what is written after each token.
        labels, real = np.roll(labels, -1, axis=1), np.roll(real, -1, axis=1)
        real[:, -1] = False

    def loss():
        logits = made.ours(inputs, **given)
        lost = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return keras.ops.sum(keras.ops.multiply(lost, real / real.sum()))

    found, _ = weight_gradients(made.ours, loss)
    of = dict(zip(map(id, made.ours.trainable_variables), map(np.asarray, found), strict=True))
    architecture = ARCHITECTURES[kind]
    entries = architecture.entries(made.ours, architecture.prefix)
    expected = {name: x.grad for name, x in made.theirs.named_parameters() if x.grad is not None}
    assert {entry.name for entry in entries} >= set(expected)
    for entry in entries:
        joined = entry.join([of[id(variable)] for variable in entry.variables])
        theirs = expected[entry.name].numpy()
        np.testing.assert_allclose(joined, theirs, rtol=1e-3, atol=1e-5, err_msg=entry.name)
