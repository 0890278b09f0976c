"""Runs of `examples.translation`: what they leave and say, and that they resume."""

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("sentencepiece", "sacrebleu", "sacremoses"))):
    pytest.skip("the example needs the extra `translation`", allow_module_level=True)

import sacrebleu

from examples.run_directory import RunDirectory
from examples.translation import data as translation_data
from examples.translation import models as translation_models
from examples.translation import prediction as translation_prediction
from examples.translation import scores as translation_scores
from examples.translation import text
from tests.examples.translation.runs import ROOT, TINY, array, curves, figures, lines, main, train


def test_both_bleus():
    references = ['Ein Mann sagt: "Hallo."', "Die Frau läuft schnell über die Straße."]
    same, signatures = translation_scores.scores(references, references, "de")
    np.testing.assert_allclose(list(same.values()), 100)
    assert "case:mixed" in signatures["bleu"] and "tok:13a" in signatures["bleu"]
    assert "tok:none" in signatures["tokenized_bleu"]
    # Case and the kind of quotation marks count for the first alone.
    other = ["ein mann sagt: „Hallo.“", "die frau läuft schnell über die straße."]
    scores, _ = translation_scores.scores(other, references, "de")
    np.testing.assert_allclose(scores["tokenized_bleu"], 100)
    assert 10 < scores["bleu"] < 70
    assert translation_scores.tokenized(references[:1], "de") == ['ein mann sagt : " hallo . "']
    assert translation_scores.tokenized(["Olá, Mundo."], "xx") == ["olá , mundo ."]


@pytest.mark.slow
def test_the_run_leaves_what_it_says(folder, finished):
    said = figures(finished)
    assert said["finished"] and said["sizes"] == {"train": 400, "validation": 20, "test": 20}
    assert {path.name for path in finished.iterdir()} == {
        "alignment.png",
        "curves.png",
        "figures.json",
        "model.keras",
        "test.txt",
        "tokenizer.spm",
    }
    translations = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    references = [lines(folder, "test_2016_flickr.de.gz")]
    score = sacrebleu.corpus_bleu(translations, references).score
    np.testing.assert_allclose(said["test_bleu"], score)
    assert said["tokenized_bleu_signature"].endswith(sacrebleu.__version__)
    words, right = (
        translation_scores.tokenized(sentences, "de") for sentences in (translations, *references)
    )
    score = sacrebleu.corpus_bleu(words, [right], tokenize="none").score
    np.testing.assert_allclose(said["test_tokenized_bleu"], score)
    model = translation_prediction.load(finished, "examples.translation")
    # The model that is kept has the mean of the weights, which the last epoch was measured with.
    pairs = text.encode_pairs(
        model.tokenizer,
        translation_data.Pairs(lines(folder, "val.en.gz"), lines(folder, "val.de.gz")),
    )
    total = 0.0
    for index in range(20):
        batch = text.Batch(np.array([index]), *pairs.sides[:, index].tolist())
        inputs, wanted = batch.arrays(pairs)
        logits = keras.ops.log_softmax(model(inputs), axis=-1)
        total -= np.take_along_axis(array(logits), wanted[..., None], axis=-1).sum()
    loss = said["epochs"][-1]["validation_loss"]
    np.testing.assert_allclose(loss, total / pairs.sides[1].sum(), rtol=1e-4)
    greedily = translation_prediction.Translate(model, 1)(lines(folder, "test_2016_flickr.en.gz"))
    score = sacrebleu.corpus_bleu(greedily, references).score
    np.testing.assert_allclose(said["test_greedy_bleu"], score)
    assert said["bleu_signature"].startswith("nrefs:1|case:mixed|")
    losses = [epoch["train_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] and all(epoch["tokens_per_second"] for epoch in said["epochs"])


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_same_figures(
    folder, finished, tmp_path, monkeypatch, capsys
):
    output = tmp_path / "run"
    # Without a search, which takes as long to compile as all else.
    command = ["--epochs", 2, "--data-dir", folder, "--output", output, "--beams", 1]
    finish_epoch = RunDirectory.finish_epoch

    def interrupt(run, model, epoch):
        if len(run.epochs) == 1:
            raise KeyboardInterrupt
        finish_epoch(run, model, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "finish_epoch", interrupt)
        assert train(*command) == 130
    assert curves(output) == curves(finished)[:1]
    assert train(*command) == 0
    assert "Resuming after epoch 1" in capsys.readouterr().out
    assert curves(output) == curves(finished)
    bleu = "test_greedy_bleu"
    assert figures(output)[bleu] == figures(output)["test_bleu"] == figures(finished)[bleu]


@pytest.mark.slow
def test_the_moving_mean_does_not_change_the_training(folder, finished, tmp_path, monkeypatch):
    """Keras's `fit` replaces weights by their moving mean when it ends."""
    monkeypatch.setattr(translation_models, "AVERAGED_STEPS", 1.5)
    output = tmp_path / "run"
    assert train("--epochs", 2, "--data-dir", folder, "--output", output, "--beams", 1) == 0
    runs = figures(finished)["epochs"], figures(output)["epochs"]
    for first, second in zip(*runs, strict=True):
        np.testing.assert_allclose(first["train_loss"], second["train_loss"], rtol=1e-5)
        assert abs(first["validation_loss"] - second["validation_loss"]) > 1e-3


@pytest.mark.slow
def test_a_fresh_process_translates(folder, finished, tmp_path):
    english = lines(folder, "test_2016_flickr.en.gz")[:3]
    picture = tmp_path / "alignment.png"
    unknown = ["", "日本"]
    command = [sys.executable, "-m", "examples.translation", "translate", str(finished)]
    backend = keras.backend.backend()
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    # What TensorFlow would say at its start.
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(
        [*command, *unknown, *english, "--beams", "2", "--picture", str(picture)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:3]
    assert done.stdout.split("\n")[:-1] == ["", "", *expected]
    assert done.stderr.splitlines() == [
        "'' has no words, so it is not translated.",
        "'日本' has no words that the model has seen, so it is not translated.",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_other_settings_and_finished_runs(folder, finished, capsys):
    command = [*TINY, "--data-dir", folder, "--output", finished]
    assert main(*command, "--epochs", 3) == 2
    assert "epochs is 2 there and 3 now" in capsys.readouterr().err
    assert main(*command, "--epochs", 2, "--target", "de") == 0
    assert "finished already" in capsys.readouterr().out
    assert main(*command, "--epochs", 2, "--source", "de", "--target", "en") == 2
    assert "languages is ['en', 'de'] there" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_recurrent_models_run(folder, tmp_path, name):
    output = tmp_path / name
    command = ["--limit", 60, "--epochs", 1, "--data-dir", folder, "--output", output]
    assert train(*command, "--model", name) == 0
    assert figures(output)["finished"] and (output / "alignment.png").exists()
