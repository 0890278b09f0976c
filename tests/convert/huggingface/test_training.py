"""A step of training: gradients are those of `transformers`, through the tensors of the files."""

import keras
import numpy as np
import pytest

from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from tests.convert.huggingface import test_encoders as encoders
from tests.convert.huggingface import test_sequence_pairs as sides
from tests.convert.huggingface.sequences import RIGHT, ids, pair, tensor
from tests.convert.huggingface.test_decoders import GPT2, LLAMA, OSS
from tests.gradients import weight_gradients

MODELS = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "gpt_oss": ("GptOssForCausalLM", OSS),
    "bert": ("BertForMaskedLM", encoders.MODELS["BertForMaskedLM"]),
    "deberta-v2": ("DebertaV2ForMaskedLM", encoders.MODELS["DebertaV2ForMaskedLM"]),
    "t5": sides.MODELS["T5"],
}


def given(kind):
    """The inputs of the original, the arguments of ours, and which tokens are real."""
    if kind == "t5":
        theirs, inputs, masks = sides.given("T5")
        return theirs, (inputs,), masks, sides.TARGET_MASK
    theirs = {"input_ids": encoders.IDS, "attention_mask": RIGHT.astype("int32")}
    if kind in ("bert", "deberta-v2"):
        theirs["token_type_ids"] = encoders.TYPES
        return theirs, (encoders.IDS, encoders.TYPES), {"mask": RIGHT}, RIGHT
    return theirs, (encoders.IDS,), {"mask": RIGHT}, RIGHT


@pytest.mark.parametrize("kind", MODELS)
def test_gradients(kind, tmp_path):
    both = pair(tmp_path, *MODELS[kind])
    theirs, inputs, options, real = given(kind)
    labels = ids(2, *real.shape)
    theirs["labels"] = np.where(real, labels, -100)
    both.original(**{name: tensor(x) for name, x in theirs.items()}).loss.backward()
    if kind in ("gpt2", "llama", "gpt_oss"):
        # Theirs compares what is written after each token.
        labels, real = np.roll(labels, -1, axis=1), np.roll(real, -1, axis=1)
        real[:, -1] = False

    def loss():
        logits = both.ours(*inputs, **options)
        lost = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return keras.ops.sum(keras.ops.multiply(lost, real / real.sum()))

    found, _ = weight_gradients(both.ours, loss)
    of = dict(zip(map(id, both.ours.trainable_variables), map(np.asarray, found), strict=True))
    architecture = ARCHITECTURES[kind]
    entries = architecture.entries(both.ours, architecture.prefix)
    expected = {name: x.grad for name, x in both.original.named_parameters() if x.grad is not None}
    assert {entry.name for entry in entries} >= set(expected)
    for entry in entries:
        joined = entry.join([of[id(variable)] for variable in entry.variables])
        theirs = expected[entry.name].numpy()
        np.testing.assert_allclose(joined, theirs, rtol=1e-3, atol=1e-5, err_msg=entry.name)
