"""`--pretrained`: a folder that `transformers` wrote is trained further, and generates."""

import importlib.util

import numpy as np
import pytest

if not all(
    map(
        importlib.util.find_spec, ("tokenizers", "transformers", "torch", "safetensors", "filelock")
    )
):
    pytest.skip("what writes and reads such folders is missing", allow_module_level=True)

import tokenizers
import torch
import transformers

from examples import language_model
from examples.language_model import main
from keras_attention import convert
from tests.arrays import numpy
from tests.examples.conftest import figures

TRAINED = ["--context", 8, "--batch-size", 4, "--steps", 4, "--measure-every", 2]


@pytest.fixture
def folder(text_file, tmp_path):
    """A tiny Llama with random weights, and a tokenizer of the sample."""
    root = tmp_path / "llama"
    root.mkdir()
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train([str(text_file)], vocab_size=300, show_progress=False)
    tokenizer.save(str(root / "tokenizer.json"))
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(root)
    return root


def test_a_folder_is_trained_further(folder, text_file, tmp_path, capsys):
    output = tmp_path / "run"
    options = ["--pretrained", folder, *TRAINED, "--data", text_file, "--output", output]
    assert main(options) == 0
    said = figures(output)
    losses = [epoch["val_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] < 1.2 * np.log(300)
    assert said["validation_loss_per_character"] < said["validation_loss"]
    capsys.readouterr()
    # Generating needs the folder no more.
    assert main(["generate", output, "ANNA:\n", "--length", 12]) == 0
    assert capsys.readouterr().out.startswith("ANNA:\n")
    # And the model goes back, for others to load.
    model, tokenizer, _ = language_model.load(output)
    convert.to_huggingface(model, tmp_path / "back")
    numbers = language_model.encode(tokenizer, "Where is it?")[None]
    with torch.no_grad():
        back = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back")
        expected = back(torch.tensor(numbers, dtype=torch.int64)).logits.numpy()
    np.testing.assert_allclose(numpy(model(numbers)), expected, atol=1e-4)
