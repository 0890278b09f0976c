"""Runs of `examples.language_model`: what they leave and say, and that they resume."""

import keras
import numpy as np
import pytest

pytest.importorskip("filelock", reason="the example needs the extra `examples`")

from examples.language_model import command, data, prediction, training
from examples.run_directory import RunDirectory
from tests.examples.language_model.runs import TINY, array, curves, figures, main


@pytest.mark.slow
def test_the_run_leaves_what_it_says(text_file, finished):
    said = figures(finished)
    assert said["finished"] and [epoch["steps"] for epoch in said["epochs"]] == [3, 6]
    assert {path.name for path in finished.iterdir()} == {
        "characters.json",
        "curves.png",
        "figures.json",
        "model.keras",
    }
    model, tokens, context = prediction.load(finished, command.PROGRAM)
    dataset = data.load(text_file)
    assert said["characters"] == {
        "train": len(dataset.train),
        "validation": len(dataset.validation),
    }
    # The loss of each character but the first, in windows, by hand.
    numbers = tokens.encode(dataset.validation)
    total, count = 0.0, 0
    for start in range(0, len(numbers) - context, context):
        window = numbers[start : start + context + 1]
        logits = array(keras.ops.log_softmax(model(window[None, :-1])))[0]
        total -= np.take_along_axis(logits, window[1:, None], axis=1).sum()
        count += context
    assert said["validation_tokens"] == count > len(numbers) - 1 - context
    np.testing.assert_allclose(said["validation_loss"], total / count, rtol=1e-5)
    np.testing.assert_allclose(said["validation_loss_per_character"], total / count, rtol=1e-5)
    np.testing.assert_allclose(said["validation_perplexity"], np.exp(total / count), rtol=1e-5)
    # All windows are fewer than those of a measurement.
    np.testing.assert_allclose(said["epochs"][-1]["validation_loss"], total / count, rtol=1e-5)
    losses = [epoch["validation_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] < 1.5 * np.log(tokens.vocabulary_size)


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_figures(
    text_file, finished, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "run"
    options = [*TINY, "--dropout", 0.1, "--data", text_file, "--output", output]
    finish_epoch = RunDirectory.finish_epoch

    def interrupt(run, model, epoch):
        if len(run.epochs) == 1:
            raise KeyboardInterrupt
        finish_epoch(run, model, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish_epoch", interrupt)
        assert main(*options) == 130
    assert curves(output) == curves(finished)[:1]
    assert main(*options) == 0
    assert "Resuming after step 3" in capsys.readouterr().out
    assert curves(output) == curves(finished)
    for name in ("validation_loss", "validation_tokens"):
        assert figures(output)[name] == figures(finished)[name]


def test_other_settings_and_finished_runs(text_file, finished, capsys):
    options = [*TINY, "--data", text_file, "--output", finished]
    assert main(*options) == 2
    assert "dropout is 0.1 there and 0.0 now" in capsys.readouterr().err
    assert main(*options, "--dropout", 0.1) == 0
    out = capsys.readouterr().out
    assert "finished already" in out and "after 6 steps, validation loss" in out
    with RunDirectory(finished, command.PROGRAM):
        assert main(*options, "--dropout", 0.1) == 2
    assert "Another process is writing" in capsys.readouterr().err


@pytest.mark.slow
def test_generate_prints_the_prompt_and_what_comes_after_it(finished, capsys):
    def said(*options):
        assert main("generate", finished, "ANNA:\n", "--length", 30, *options) == 0
        return capsys.readouterr().out

    first = said()
    assert first.startswith("ANNA:\n") and len(first) == len("ANNA:\n") + 30 + 1
    assert first == said() != said("--seed", 1)
    assert said("--top-k", 1) == said("--temperature", 0)
    assert main("generate", finished, "日") == 2
    assert "never seen the character '日'" in capsys.readouterr().err


@pytest.mark.slow
def test_subwords_in_mixed_precision_run(text_file, tmp_path, capsys):
    pytest.importorskip("sentencepiece", reason="subwords need it")
    options = ["--tokens", "subwords", "--vocabulary-size", 400, "--mixed-precision"]
    policy = keras.config.dtype_policy()
    output = tmp_path / "run"
    assert main(*TINY, *options, "--data", text_file, "--output", output) == 0
    assert keras.config.dtype_policy() == policy
    said = figures(output)
    tokens = prediction.load(output, command.PROGRAM)[1]
    validation = data.load(text_file).validation
    np.testing.assert_allclose(
        said["validation_loss_per_character"],
        said["validation_loss"] * len(tokens.encode(validation)) / len(validation),
    )
    assert "per character" in capsys.readouterr().out
    assert main("generate", output, "ANNA:\n", "--length", 5) == 0


def test_a_text_of_fewer_tokens_than_a_window_is_one_line(tmp_path, capsys):
    path = tmp_path / "text.txt"
    path.write_text("Too short for it.")
    assert main(*TINY, "--data", path, "--output", tmp_path / "run") == 2
    assert "The validation part of the text has 2 tokens" in capsys.readouterr().err


def test_windows_are_of_the_whole_text_and_of_their_epoch():
    numbers = np.arange(20)
    settings = {"seed": 0, "measure_every": 50, "batch_size": 4, "context": 8}
    windows = training.Windows(numbers, settings)
    given, wanted = windows[0]
    assert given.shape == wanted.shape == (4, 8) and (wanted == given + 1).all()
    assert set(windows.starts.ravel()) == set(range(12))
    first = windows.starts
    windows.draw(1)
    assert (windows.starts != first).any()
    windows.draw(0)
    assert (windows.starts == first).all() and windows.tokens == [32] * 50
