"""`--pretrained`: a folder of Hugging Face's format is trained further, and goes back."""

import numpy as np

from examples import language_model
from examples.language_model import main
from keras_attention import convert
from tests.arrays import close, numpy
from tests.examples.conftest import ran

TRAINED = ["--context", 8, "--batch-size", 4, "--steps", 4, "--measure-every", 2]


def test_a_folder_is_trained_further(gpt2, text_file, tmp_path, capsys):
    output = tmp_path / "run"
    options = ["--pretrained", gpt2, *TRAINED, "--learning-rate", 1e-3]
    said = ran(main, output, *options, "--data", text_file)
    losses = [epoch["val_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] < 1.2 * np.log(300)
    assert said["validation_loss_per_character"] < said["validation_loss"]
    capsys.readouterr()
    # Generating needs the folder no more.
    assert main(["generate", output, "ANNA:\n", "--length", 12]) == 0
    assert capsys.readouterr().out.startswith("ANNA:\n")
    model, tokenizer, _ = language_model.load(output)
    convert.to_huggingface(model, tmp_path / "back")
    numbers = language_model.encode(tokenizer, "Where is it?")[None]
    close(convert.from_huggingface(tmp_path / "back")(numbers), numpy(model(numbers)))
