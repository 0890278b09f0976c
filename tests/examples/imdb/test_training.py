"""Runs of `examples.imdb_classification`: what they leave, and that they resume."""

import shutil

import keras
import numpy as np
import pytest

from examples import imdb_classification, imdb_reviews
from examples.texts import load_tokenizer, pad
from tests.examples.imdb.runs import TINY, curves, figures, main


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "best", "--positions"],
        ["--model", "other"],
        ["--epochs", "0"],
        ["--validation", "1"],
        ["--data-dir", "x", "--sample"],
        ["--lora", "4"],
        ["--model", "post", "--learning-rate", "1e-4"],
        ["--pretrained", "bert", "--model", "post"],
        ["--pretrained", "bert", "--positions"],
        ["--pretrained", "bert", "--vocabulary-size", "200"],
        ["--pretrained", "bert", "--lora", "0"],
        ["predict"],
        ["predict", "runs/imdb-transformer"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


def test_positions_are_trained_longer_on_few_reviews(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(imdb_classification, "train", lambda run, *_: given.append(run.settings))
    for arguments in ([], ["--limit", 8], ["--limit", 8, "--positions"]):
        with pytest.raises(TypeError):  # There are no figures.
            main("--sample", "--model", "post", *arguments, "--output", tmp_path / "run")
    found = [(settings["model"], settings["epochs"]) for settings in given]
    assert found == [("post", 2), ("post", 2), ("post-positions", 3)]


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


def test_saved_model_measures_what_the_figures_say(folder, finished):
    classifier = keras.models.load_model(finished / "model.keras")
    _, _, test = imdb_reviews.load(folder)
    settings = figures(finished)["settings"]
    rows = imdb_classification.encode(load_tokenizer(finished), test.texts, settings)
    found = classifier.predict(pad(rows), verbose=0)[:, 0]
    accuracy = np.mean((found > 0.5) == test.labels)
    assert accuracy == pytest.approx(figures(finished)["test_accuracy"], abs=1e-6)


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_figures(
    folder, finished, tmp_path, interrupted, capsys
):
    output = tmp_path / "run"
    command = [*TINY, "--epochs", 3, "--data-dir", folder, "--output", output]
    with interrupted(2):
        assert main(*command) == 130
    assert curves(output) == curves(finished)[:2]
    assert main(*command) == 0
    assert "Resuming after epoch 2" in capsys.readouterr().out
    assert curves(output) == curves(finished)
    weights = [keras.models.load_model(p / "model.keras").get_weights() for p in (output, finished)]
    for resumed, whole in zip(*weights, strict=True):
        np.testing.assert_array_equal(resumed, whole)


def test_finished_run_answers_before_data_are_read(finished, folder, capsys):
    before = {file.name: file.read_bytes() for file in finished.iterdir()}
    command = [*TINY, "--epochs", 3, "--output", finished]
    assert main(*command, "--data-dir", "nowhere") == 0
    out = capsys.readouterr().out
    assert "finished already" in out and "test accuracy" in out
    for options, message in (
        (["--data-dir", folder, "--seed", 5], "seed is 0 there and 5 now"),
        (["--data-dir", folder, "--positions"], "model is 'post' there and 'post-positions' now"),
        (["--sample"], "data_source is 'folder' there and 'sample' now"),
    ):
        assert main(*command, *options) == 2
        assert message in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in finished.iterdir()} == before


def test_other_data_is_refused(folder, finished, tmp_path, capsys):
    output, data = tmp_path / "run", tmp_path / "aclImdb"
    shutil.copytree(finished, output)
    file = output / "figures.json"
    file.write_text(file.read_text().replace('"finished": true', '"finished": false'))
    shutil.copytree(folder, data)
    next((data / "train" / "pos").iterdir()).write_text("Something else.")
    assert main(*TINY, "--epochs", 3, "--data-dir", data, "--output", output) == 2
    assert "data is [" in capsys.readouterr().err
