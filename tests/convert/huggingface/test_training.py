"""A step of training: gradients are those of `transformers`, through the tensors of the files."""

import keras
import numpy as np
import pytest

from keras_attention.convert.huggingface.architectures import ARCHITECTURES
from tests.convert.huggingface.folders import MASKS, numpy, tokens, torch, transformers
from tests.convert.huggingface.test_decoders import GPT2, LLAMA, OSS
from tests.gradients import weight_gradients

MODELS = {
    "gpt2": (transformers.GPT2LMHeadModel, GPT2),
    "llama": (transformers.LlamaForCausalLM, LLAMA),
    "gpt_oss": (transformers.GptOssForCausalLM, OSS),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients(folder, name):
    model_class, fields = MODELS[name]
    made = folder(model_class, **fields)
    ids, mask = tokens((3, 9)), MASKS["right"]
    model = made.ours

    def loss(logits, targets):
        chosen = keras.losses.sparse_categorical_crossentropy(targets, logits, from_logits=True)
        return keras.ops.sum(keras.ops.multiply(chosen, mask[:, 1:].astype("float32")))

    found, _ = weight_gradients(model, lambda: loss(model(ids, mask=mask)[:, :-1], ids[:, 1:]))
    of = {id(v): gradient for v, gradient in zip(model.trainable_variables, found, strict=True)}
    labels = torch.tensor(np.where(mask, ids, -100)).long()
    theirs = made.theirs
    theirs.zero_grad()
    given = {"input_ids": torch.tensor(ids).long(), "attention_mask": torch.tensor(mask).long()}
    logits = theirs(**given).logits[:, :-1].reshape(-1, theirs.config.vocab_size)
    torch.nn.functional.cross_entropy(
        logits, labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum"
    ).backward()
    parameters = dict(theirs.named_parameters())
    architecture = ARCHITECTURES[name]
    compared = architecture.entries(model, architecture.prefix)
    assert {entry.name for entry in compared} == set(parameters)
    for entry in compared:
        expected = numpy(parameters[entry.name].grad)
        joined = entry.join([np.asarray(of[id(variable)]) for variable in entry.variables])
        np.testing.assert_allclose(
            joined,
            expected,
            rtol=1e-3,
            atol=1e-4 * max(1.0, np.abs(expected).max()),
            err_msg=entry.name,
        )
