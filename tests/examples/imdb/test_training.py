"""Runs of `examples.imdb_classification`, and what they leave."""

import keras
import pytest

from tests.examples.conftest import figures
from tests.examples.imdb.runs import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "post", "--positions"],
        ["--model", "best"],
        pytest.param(["--model", "post", "--jit"], marks=pytest.mark.slow),
        pytest.param(
            ["--model", "transformer", "--validation", "0.25", "--mixed-precision"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=" ".join,
)
def test_every_model_trains_saves_and_predicts(folder, tmp_path, capsys, arguments):
    output = tmp_path / "run"
    common = ["--epochs", 1, "--data-dir", folder, "--output", output]
    try:
        assert main(*arguments, *common) == 0
    finally:
        keras.config.set_dtype_policy("float32")
    said = figures(output)
    assert set(said["epochs"][0]) == {
        "epoch", "seconds", "loss", "accuracy", "val_loss", "val_accuracy",
    }  # fmt: skip
    assert 0.0 <= said["test_accuracy"] <= 1.0
    if "--validation" in arguments:
        assert said["sizes"] == {"train": 48, "validation": 16, "test": 32}
    assert said["dataset"] == "imdb (aclImdb folder)"
    expected = {"figures.json", "model.keras", "tokenizer.json"}
    expected |= set() if "post" in arguments else {"ngrams.npz"}
    assert {file.name for file in output.iterdir()} == expected
    capsys.readouterr()
    assert main("predict", output, "The plot was superb.") == 0
    assert "superb" in capsys.readouterr().out
