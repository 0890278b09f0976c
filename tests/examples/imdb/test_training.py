"""Runs of `examples.imdb_classification`: what they leave, and that they resume."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import zipfile

import keras
import numpy as np
import pytest

from examples.imdb import data as imdb_data
from examples.imdb import text as imdb_text
from examples.imdb import training as imdb_training
from examples.run_directory import RunDirectory
from tests.examples.imdb.runs import (
    ROOT,
    TEXTS,
    TINY,
    contents,
    curves,
    figures,
    main,
    saved,
    small_model,
)


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
    measured_on = "validation" if "--validation" in arguments else "test"
    assert set(said["epochs"][0]) == {
        "epoch", "seconds", "processor_seconds", "train_loss", "train_accuracy",
        f"{measured_on}_loss", f"{measured_on}_accuracy",
    }  # fmt: skip
    assert 0.0 <= said["test_accuracy"] <= 1.0
    with zipfile.ZipFile(output / "model.keras") as archive:
        assert b"keras_attention" in archive.read("needs.txt")
    assert sum(said["sizes"][part] for part in {"train", measured_on, "test"}) == 96
    assert said["dataset"] == "imdb (aclImdb folder)" and not said["full_imdb"]
    assert sorted(file.name for file in output.iterdir()) == [
        "curves.png", "figures.json", "model.keras", "text.npz",
    ]  # fmt: skip
    capsys.readouterr()
    # Names of operations count from nothing again, as in a separate process.
    keras.utils.clear_session()
    assert main("predict", output, "The plot was superb.") == 0
    assert "superb" in capsys.readouterr().out


def test_saved_model_measures_what_the_figures_say(folder, finished):
    classifier, encode = saved(finished)
    test = imdb_data.from_folder(folder).test
    probabilities = classifier.predict(imdb_text.pad([encode(t) for t in test.texts]), verbose=0)
    accuracy = np.mean((probabilities[:, 0] > 0.5) == test.labels)
    assert accuracy == pytest.approx(figures(finished)["test_accuracy"], abs=1e-6)


def test_training_figures_are_means_over_all_reviews():
    model, encode = small_model("best")
    rows, labels = [encode(text) for text in TEXTS], np.array([1, 0, 1])
    # At a learning rate of 0 the model stays what it is.
    imdb_training.compile_classifier(model, keras.optimizers.SGD(0.0))
    settings = {"seed": 0, "batch_size": 2}
    figures = imdb_training.train_epoch(model, rows, labels, encode, 0, settings)
    measured = imdb_training.measure(model, rows, labels, encode, "train")
    for name, value in measured.items():
        assert figures[name] == pytest.approx(value, abs=1e-5)


def test_batches_have_every_review_once_and_little_padding():
    rows = [np.zeros(n % 17 + 1, "int32") for n in range(1000)]
    batches = imdb_training.batches(rows, 8, np.random.default_rng(0))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    assert {len(batch) for batch in batches} == {8}
    spread = [np.ptp([len(rows[i]) for i in batch]) for batch in batches]
    assert np.mean(spread) < 2


@pytest.mark.slow
def test_same_seed_same_figures_other_seed_others(folder, finished, tmp_path):
    common = [*TINY, "--epochs", 3, "--data-dir", folder]
    assert main(*common, "--output", tmp_path / "same") == 0
    assert main(*common, "--output", tmp_path / "other", "--seed", 1) == 0
    assert curves(tmp_path / "same") == curves(finished)
    assert curves(tmp_path / "other") != curves(finished)


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_figures(
    folder, finished, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "run"
    command = [*TINY, "--epochs", 3, "--data-dir", folder, "--output", output]
    finish_epoch = RunDirectory.finish_epoch

    def interrupt(run, model, epoch):
        if len(run.epochs) == 2:
            raise KeyboardInterrupt
        finish_epoch(run, model, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish_epoch", interrupt)
        assert main(*command) == 130
    assert curves(output) == curves(finished)[:2]
    assert main(*command) == 0
    assert "Resuming after epoch 2" in capsys.readouterr().out
    assert curves(output) == curves(finished)
    weights = [keras.models.load_model(p / "model.keras").get_weights() for p in (output, finished)]
    for resumed, whole in zip(*weights, strict=True):
        np.testing.assert_array_equal(resumed, whole)


def wait_for_epoch(process, output, number, seconds=300):
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if len(figures(output)["epochs"]) >= number:
                return
        time.sleep(0.01)
    raise TimeoutError(f"epoch {number} did not end; exit status {process.poll()}")


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_figures(folder, tmp_path):
    command = [sys.executable, "-m", "examples.imdb_classification", *TINY, "--epochs", "6"]
    command += ["--data-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(output):
        return subprocess.Popen([*command, "--output", output], cwd=ROOT, env=environment)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(timeout=300) == 0
    for epoch in (1, 4):
        process = start(killed)
        try:
            wait_for_epoch(process, killed, epoch)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert not figures(killed)["finished"]
    assert start(killed).wait(timeout=300) == 0
    assert curves(killed) == curves(whole)


def test_finished_run_is_not_trained_again(folder, finished, capsys):
    before = contents(finished)
    assert main(*TINY, "--epochs", 3, "--data-dir", folder, "--output", finished) == 0
    out = capsys.readouterr().out
    assert "finished already" in out and "test accuracy" in out
    assert contents(finished) == before
