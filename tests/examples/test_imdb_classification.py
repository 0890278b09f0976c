"""The example program `examples.imdb_classification`, from its command line to its files."""

import ast
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_attention
from examples.errors import UsageError
from examples.imdb import command as imdb_classification
from examples.imdb import data as imdb_data
from examples.imdb import models as imdb_models
from examples.imdb import ngrams as imdb_ngrams
from examples.imdb import prediction as imdb_prediction
from examples.imdb import recipes as imdb_recipes
from examples.imdb import sample as imdb_sample
from examples.imdb import text as imdb_text
from examples.imdb import training as imdb_training
from examples.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
TINY = ["--model", "post", "--vocabulary-size", "200", "--max-length", "12"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """An aclImdb folder of 64 + 32 synthetic reviews."""
    root = tmp_path_factory.mktemp("data") / "aclImdb"
    for split, count, seed in (("train", 64, 0), ("test", 32, 1)):
        texts, labels = imdb_sample.generate(count, seed)
        for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
            path = root / split / ("pos" if label else "neg") / f"{number}_{9 if label else 2}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def finished(folder, tmp_path_factory):
    """The output of an uninterrupted run of three epochs."""
    output = tmp_path_factory.mktemp("runs") / "finished"
    assert main(*TINY, "--epochs", "3", "--data-dir", folder, "--output", output) == 0
    return output


def main(*arguments):
    return imdb_classification.main([str(argument) for argument in arguments])


def figures(output):
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def curves(output):
    """What each epoch gave, without the time that it took."""
    return [
        {name: value for name, value in epoch.items() if "seconds" not in name}
        for epoch in figures(output)["epochs"]
    ]


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else None


# Data


def only_pos(root):
    shutil.rmtree(root / "train" / "neg")


def no_train(root):
    shutil.rmtree(root / "train")


def no_reviews(root):
    for path in (root / "test" / "pos").iterdir():
        path.unlink()


def latin_1(root):
    (root / "train" / "pos" / "900_8.txt").write_bytes("Amélie".encode("latin-1"))


def cut_short(root):
    (root / "train" / "pos" / "900_8.txt").write_text("")


def mixed_up(root):
    (root / "train" / "pos" / "900_2.txt").write_text("Dull.")


def test_is_train(root):
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")


test_is_train.__test__ = False  # A way to break a folder, not a test.


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "is not a directory"),
        (only_pos, "has no train/neg"),
        (no_train, "has no train/neg"),
        (no_reviews, "holds no reviews"),
        (latin_1, "900_8.txt is not UTF-8"),
        (cut_short, "900_8.txt is empty"),
        (mixed_up, "900_2.txt is in the wrong folder"),
        (test_is_train, "same reviews in train and in test"),
    ],
)
def test_damaged_folder(folder, tmp_path, capsys, damage, message):
    data = tmp_path / "aclImdb"
    shutil.copytree(folder, data)
    damage(data)
    assert main("--data-dir", data, "--output", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") <= 2
    assert not (tmp_path / "run").exists()


def test_folder_above_is_guessed(folder):
    with pytest.raises(UsageError, match="Did you mean "):
        imdb_data.from_folder(folder.parent)


def test_partial_set_is_told(folder):
    dataset = imdb_data.from_folder(folder)
    assert "NOT THE FULL SET" in dataset.warning
    for split in ("train", "test"):
        for name in ("pos", "neg"):
            count = len(list((folder / split / name).iterdir()))
            assert f"{split}/{name} {count}" in dataset.warning
    assert not dataset.is_full_imdb


def test_full_set_is_known_by_its_counts():
    reviews = imdb_data.Reviews(["a"] * 25_000, np.arange(25_000) % 2)
    lopsided = imdb_data.Reviews(["a"] * 25_000, np.arange(25_000) % 3 % 2)
    assert imdb_data.Dataset(imdb_data.FOLDER, reviews, reviews).is_full_imdb
    assert not imdb_data.Dataset(imdb_data.FOLDER, reviews, lopsided).is_full_imdb
    assert not imdb_data.Dataset(imdb_data.SAMPLE, reviews, reviews).is_full_imdb


def test_fallback_says_so(tmp_path, capsys, monkeypatch):
    def fail():
        raise ConnectionError("no route to\nhost")

    monkeypatch.setattr(imdb_data, "from_tensorflow_datasets", fail)
    output = tmp_path / "run"
    assert main(*TINY, "--epochs", 1, "--limit", 64, "--output", output) == 0
    out, err = capsys.readouterr()
    assert "THIS IS NOT IMDB" in err and "ConnectionError: no route to host" in err
    assert "embedded sample (not IMDB), limited to 64: 64 training and 64 test reviews" in out
    said = figures(output)
    assert said["dataset"] == "embedded sample (not IMDB)" and not said["full_imdb"]


class FakeBuilder:
    """Stands in for TensorFlow Datasets' builder of imdb_reviews."""

    def __init__(self, prepared):
        self.prepared = prepared

    def is_prepared(self):
        return self.prepared

    def download_and_prepare(self):
        raise AssertionError("the download must not start when the host does not answer")

    def as_dataset(self, split, batch_size):
        text = {"train": "Schön!", "test": "Dull."}[split]
        return {"text": np.array([text.encode()], object), "label": np.array([1])}


def fake_tfds(monkeypatch, prepared):
    module = types.SimpleNamespace(
        builder=lambda name, **kwargs: FakeBuilder(prepared), as_numpy=lambda rows: rows
    )
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)


def test_tensorflow_datasets_come_before_the_sample(folder, monkeypatch):
    fake_tfds(monkeypatch, prepared=True)
    dataset = imdb_data.load()
    assert dataset.source == "imdb_reviews (TensorFlow Datasets)"
    assert dataset.train.texts == ["Schön!"] and dataset.test.texts == ["Dull."]
    assert imdb_data.load(folder).source == "imdb (aclImdb folder)"


def test_no_network_is_found_out_before_the_download(monkeypatch):
    def refuse(address, timeout):
        raise OSError("unreachable")

    fake_tfds(monkeypatch, prepared=False)
    monkeypatch.setattr(imdb_data.urllib.request, "getproxies", dict)
    monkeypatch.setattr(imdb_data.socket, "create_connection", refuse)
    dataset = imdb_data.load()
    assert dataset.source == imdb_data.SAMPLE and "OSError: unreachable" in dataset.warning


def test_limit_and_split():
    reviews = imdb_data.Reviews(list("abcdefghij"), np.array([0] * 7 + [1] * 3))
    limited = reviews.limited(4, seed=0)
    assert limited.labels.tolist() == [0, 0, 1, 1]
    assert limited.texts == reviews.limited(4, seed=0).texts
    rest, held_out = reviews.split(0.2, seed=0)
    assert len(held_out) == 2 and sorted(rest.texts + held_out.texts) == reviews.texts


def test_neighbors_are_held_out_together():
    reviews = imdb_data.Reviews([str(i) for i in range(1000)], np.arange(1000) % 2)
    _, held_out = reviews.split(0.2, seed=0)
    numbers = sorted(int(text) for text in held_out.texts)
    assert len(numbers) == 200
    assert all(number // 10 * 10 + i in numbers for number in numbers for i in range(10))


def test_sample_is_reproducible_balanced_and_imperfect():
    texts, labels = imdb_sample.generate(400, seed=3)
    again, _ = imdb_sample.generate(400, seed=3)
    assert texts == again and 150 < labels.sum() < 250
    verdicts = [(t, y) for t, y in zip(texts, labels, strict=True) if "watch it again" in t]
    wrong = [("would not watch" in text) == bool(label) for text, label in verdicts]
    assert 0 < np.mean(wrong) < 0.2


# Text


@pytest.mark.parametrize(
    ("text", "words", "with_punctuation"),
    [
        (
            "It's well-made.<br /><br />The END?!",
            "it's well made the end",
            "it's well - made . the end ?!",
        ),
        ("ÉTÉ\u00a0naïve 日本 (b) 100%", "été naïve 日本 b 100", "été naïve 日本 ( b ) 100 %"),
        ("terrible<br />plot", "terrible plot", "terrible plot"),
        (" ... ", "", "..."),
        ("", "", ""),
    ],
)
def test_tokens(text, words, with_punctuation):
    assert imdb_text.tokens(text) == words.split()
    assert imdb_text.tokens(text, punctuation=True) == with_punctuation.split()


def encoder(texts, name="post", vocabulary_size=100, max_length=10, **changes):
    recipe = dataclasses.replace(imdb_recipes.RECIPES[name], **changes)
    return imdb_text.Encoder.learn(texts, recipe, vocabulary_size, max_length)


def test_words_are_numbered_by_frequency():
    encode = encoder(["the the the film film is"] * 2, vocabulary_size=4)
    assert encode.size == 4
    assert encode("The film is!").tolist() == [2, 3, 1]
    assert encode("").tolist() == encode("?!").tolist() == [1]


def test_rare_words_are_unknown():
    encode = encoder(["a b b", "a c"], min_reviews=2)
    assert encode("a b c").tolist() == [2, 1, 1]


@pytest.mark.parametrize("window", ["last", "both_ends"])
@pytest.mark.parametrize("max_length", [1, 4, 5])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 6, 11])
def test_windows(window, max_length, length):
    words = [f"w{i}" for i in range(length)]
    encode = encoder([" ".join(words)], window=window, max_length=max_length)
    head = 0 if window == "last" else max_length // 2
    expected = [w for i, w in enumerate(words) if i < head or length - i <= max_length - head]
    assert encode.tokens(" ".join(words)) == (words if length <= max_length else expected)
    assert len(encode(" ".join(words))) == min(length, max_length)


@pytest.mark.parametrize("name", ["post", "best"])
def test_encoder_survives_saving_whatever_its_words(tmp_path, name):
    texts = ["a\u0085b \u2028 a\u2028b b a \u0085 déjà \x1c"] * 2
    encode = encoder(texts, name)
    encode.save(tmp_path / "text.npz")
    loaded = imdb_text.Encoder.load(tmp_path / "text.npz")
    assert loaded.words == encode.words and loaded.size == encode.size
    np.testing.assert_array_equal(loaded(texts[0]), encode(texts[0]))
    assert imdb_text.UNKNOWN not in loaded(texts[0])


def test_padding_to_few_lengths():
    assert [imdb_text.padded_length(n, 200) for n in (1, 128, 129, 200)] == [128, 128, 200, 200]
    np.testing.assert_array_equal(
        imdb_text.pad([np.array([3]), np.array([4, 5])], 3), [[3, 0, 0], [4, 5, 0]]
    )


# Models

TEXTS = ["superb", "a dull plot , dull", "the plot was superb and the plot was not dull at all"]


def small_model(name):
    """A model of a recipe with weights at random, and its encoder."""
    encode = encoder(TEXTS * 2, name, max_length=1000)
    ratios = np.random.default_rng(0).normal(size=encode.size)
    recipe = imdb_recipes.RECIPES[name]
    model = imdb_models.build(recipe, encode.size, ratios)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) / 4)
    return model, encode


@pytest.mark.parametrize("name", imdb_recipes.RECIPES)
def test_padding_changes_nothing_and_gets_no_weight(name):
    model, encode = small_model(name)
    both = imdb_prediction.with_weights(model)
    for text in TEXTS:
        row = encode(text)
        alone, scores = both.predict_on_batch(imdb_text.pad([row]))
        assert not np.allclose(alone, 0.5, atol=1e-3)
        expected = imdb_prediction.place_weights(scores)
        for length in (len(row) + 1, 40, 700):
            padded, scores = both.predict_on_batch(imdb_text.pad([row], length))
            np.testing.assert_allclose(padded, alone, atol=2e-6)
            weights = imdb_prediction.place_weights(scores)
            assert not np.any(weights[:, len(row) :])
            np.testing.assert_allclose(weights[:, : len(row)], expected, atol=2e-6)


@pytest.mark.parametrize("name", imdb_recipes.RECIPES)
def test_no_layer_drops_a_mask(name):
    assert not keras_attention.check_masks(small_model(name)[0])


def test_best_without_attention_weighs_all_words_alike():
    encode = encoder(TEXTS * 2, "best")
    ratios = np.random.default_rng(0).normal(size=encode.size)
    model = imdb_models.build(imdb_recipes.RECIPES["best"], encode.size, ratios, attend=False)
    _, scores = imdb_prediction.with_weights(model).predict_on_batch(encode(TEXTS[1])[None])
    np.testing.assert_allclose(scores, 1 / 5, rtol=1e-5)


def test_evidence_of_an_unknown_word_is_none():
    model, encode = small_model("best")
    ratio = model.get_layer("log_ratio").get_weights()[0]
    # Column 0 is the word: what an unknown word has in the others is the number of no n-gram.
    assert not encode("zyxxy zyxxy")[:, 1:].any()
    learned = imdb_ngrams.log_ratios([encode(t) for t in TEXTS], [1, 0, 1], encode.size)
    assert learned[0] == 0 and ratio.shape == (encode.size, 1)


# Training


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
    assert sum(said["sizes"][part] for part in {"train", measured_on, "test"}) == 96
    assert said["dataset"] == "imdb (aclImdb folder)" and not said["full_imdb"]
    assert sorted(file.name for file in output.iterdir()) == [
        "curves.png", "figures.json", "model.keras", "text.npz",
    ]  # fmt: skip
    capsys.readouterr()
    # Names of operations count from nothing again, as in a process of its own.
    keras.utils.clear_session()
    assert main("predict", output, "The plot was superb.") == 0
    assert "superb" in capsys.readouterr().out


def saved(output):
    """The classifier and the encoder that a run has left."""
    return (
        keras.models.load_model(output / "model.keras"),
        imdb_text.Encoder.load(output / "text.npz"),
    )


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


def test_same_seed_same_figures_other_seed_others(folder, finished, tmp_path):
    common = [*TINY, "--epochs", 3, "--data-dir", folder]
    assert main(*common, "--output", tmp_path / "same") == 0
    assert main(*common, "--output", tmp_path / "other", "--seed", 1) == 0
    assert curves(tmp_path / "same") == curves(finished)
    assert curves(tmp_path / "other") != curves(finished)


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


# What is there is not overwritten


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", 4], "epochs is 3 there and 4 now"),
        (["--epochs", 3, "--seed", 5], "seed is 0 there and 5 now"),
        (["--epochs", 3, "--positions"], "model is 'post' there and 'post-positions' now"),
        (["--epochs", 3, "--limit", 8], "limit is None there and 8 now"),
    ],
)
def test_other_settings_are_refused(folder, finished, capsys, arguments, message):
    before = contents(finished)
    assert main(*TINY, *arguments, "--data-dir", folder, "--output", finished) == 2
    assert message in capsys.readouterr().err
    assert contents(finished) == before


def test_other_data_is_refused(folder, finished, tmp_path, capsys):
    output, data = tmp_path / "run", tmp_path / "aclImdb"
    shutil.copytree(finished, output)
    unfinished(output)
    (output / "checkpoint-3.keras").write_text("")
    shutil.copytree(folder, data)
    next((data / "train" / "pos").iterdir()).write_text("Something else.")
    assert main(*TINY, "--epochs", 3, "--data-dir", data, "--output", output) == 2
    assert "data is [" in capsys.readouterr().err


def test_finished_run_answers_before_data_are_read(finished, capsys):
    assert main(*TINY, "--epochs", 3, "--data-dir", "nowhere", "--output", finished) == 0
    assert "finished already" in capsys.readouterr().out


def a_file(path):
    path.write_text("mine")


def below_a_file(path):
    path.parent.write_text("mine")


def foreign_files(path):
    path.mkdir(parents=True)
    (path / "model.keras").write_text("mine")


def foreign_figures(path):
    path.mkdir(parents=True)
    (path / "figures.json").write_text('{"program": "another"}')


def damaged_figures(path):
    path.mkdir(parents=True)
    (path / "figures.json").write_text('{"program": "exam')


def lost_checkpoint(path):
    path.mkdir(parents=True)
    said = {
        "program": imdb_classification.PROGRAM,
        "settings": {},
        "finished": False,
        "epochs": [{}, {}],
    }
    (path / "figures.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("occupy", "message"),
    [
        (a_file, "is a file"),
        (below_a_file, "cannot be written"),
        (foreign_files, "is not a run of examples.imdb_classification: it holds model.keras"),
        (foreign_figures, "is of another program"),
        (damaged_figures, "is not JSON"),
        (lost_checkpoint, "checkpoint-2.keras is missing"),
    ],
)
def test_unusable_output(folder, tmp_path, capsys, occupy, message):
    output = tmp_path / "runs"
    if occupy is below_a_file:
        output = output / "run"
    occupy(output)
    before = contents(output)
    assert main(*TINY, "--data-dir", folder, "--output", output) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert contents(output) == before


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_read_only_output(folder, tmp_path, capsys):
    tmp_path.chmod(0o500)
    assert main("--data-dir", folder, "--output", tmp_path / "run") == 2
    assert "cannot be written" in capsys.readouterr().err


def test_failed_write_leaves_the_old_file(tmp_path):
    run = RunDirectory(tmp_path / "run", "program")
    run.begin({"seed": 0})
    before = contents(run.path)["figures.json"]

    def fail(path):
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(UsageError, match="disk full"):
        run.write("figures.json", fail)
    assert contents(run.path)["figures.json"] == before
    run.close()
    RunDirectory(run.path, "program").begin({"seed": 0})


# Prediction


def test_predict(finished, capsys):
    not_utf_8 = b"Am\xe9lie dull".decode("utf-8", "surrogateescape")
    texts = ["The plot was superb, zyxxy.", "dull " * 20_000, not_utf_8, "", "?!", "zyxxy xyzzy"]
    assert main("predict", finished, *texts) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(texts)
    for line in lines[:6:2]:
        label, probability = line.split()[:2]
        assert label == ("positive" if float(probability) >= 0.5 else "negative")
    assert "zyxxy (unknown) " in lines[1] and "superb " in lines[1]
    assert lines[3].strip() == "attended most: dull 100.0%"
    assert all(line.startswith("no label ") for line in lines[6::2])
    assert [line.strip() for line in lines[7::2]] == [
        "it has no words", "it has no words", "the model knows none of its words",
    ]  # fmt: skip


@pytest.mark.parametrize("name", imdb_recipes.RECIPES)
def test_percentages_sum_to_100(name):
    model, encode = small_model(name)
    predictor = object.__new__(imdb_prediction.Predictor)
    predictor._encoder = encode
    predictor._classifier = imdb_prediction.with_weights(model)
    for prediction in predictor([*TEXTS, "the superb plot was not all dull at " * 30 + "zyxxy"]):
        assert sum(weight for _, weight, _ in prediction.attended) == pytest.approx(1, abs=1e-5)
        shown = imdb_prediction.report(prediction).partition("attended most: ")[2]
        percentages = [float(part.split()[-1].rstrip("%")) for part in shown.split("%, ")]
        assert sum(percentages) == pytest.approx(100, abs=0.5)


def test_attended_words_have_the_weights_of_the_layer(finished):
    predictor = imdb_prediction.Predictor(finished, imdb_classification.PROGRAM)
    text = "The plot was superb and the plot was honest, nobody could call the villain dull, superb"
    (prediction,) = predictor([text])
    classifier, encode = saved(finished)
    ids = encode(text)[None]
    assert prediction.probability == pytest.approx(
        float(classifier.predict_on_batch(ids)[0, 0]), abs=1e-6
    )
    # The last 12 of 16 words fill the model's input.
    kept = imdb_text.tokens(text)[-12:]
    assert {word for word, _, _ in prediction.attended} == set(kept)
    weights = [weight for _, weight, _ in prediction.attended]
    assert sum(weights) == pytest.approx(1.0, abs=1e-5) and weights == sorted(weights)[::-1]

    x = classifier.get_layer("embedding")(ids)
    _, scores = classifier.get_layer("attention")([x, x, x], return_attention_scores=True)
    per_place = keras.ops.convert_to_numpy(scores)[0].mean(axis=(0, 1))
    for word, weight, _ in prediction.attended:
        places = [place for place, other in enumerate(kept) if other == word]
        assert weight == pytest.approx(per_place[places].sum(), rel=1e-4)


def other_model(path):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]).save(path / "model.keras")


def cut_model(path):
    file = path / "model.keras"
    file.write_bytes(file.read_bytes()[:1000])


def zeroed_model(path):
    file = path / "model.keras"
    file.write_bytes(bytes(len(file.read_bytes())))


def no_model(path):
    (path / "model.keras").unlink()


def no_words(path):
    (path / "text.npz").unlink()


def cut_words(path):
    file = path / "text.npz"
    file.write_bytes(file.read_bytes()[:-300])


def zeroed_words(path):
    file = path / "text.npz"
    file.write_bytes(bytes(len(file.read_bytes())))


def unfinished(path):
    said = figures(path) | {"finished": False}
    (path / "figures.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (other_model, "is not a model of this program"),
        (cut_model, "is cut short"),
        (zeroed_model, "holds zeros"),
        (no_model, "cannot be read"),
        (no_words, "text.npz is missing. A run has it beside its model since version 0.2"),
        (cut_words, "text.npz is damaged"),
        (zeroed_words, "text.npz is damaged"),
        (unfinished, "is not finished"),
        (foreign_figures, "is of another program"),
        (shutil.rmtree, "cannot be read"),
    ],
)
def test_predict_without_a_usable_model(finished, tmp_path, capsys, damage, message):
    output = tmp_path / "run"
    if damage is not foreign_figures:
        shutil.copytree(finished, output)
    damage(output)
    assert main("predict", output, "Superb.") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_files_and_folders_in_the_wrong_places(finished, capsys):
    assert main("predict", finished / "model.keras", "Superb.") == 2
    assert f"Give the folder that it is in: {finished}" in capsys.readouterr().err
    assert main("predict", finished, finished) == 2
    assert "is a folder, and was given as a text" in capsys.readouterr().err


@pytest.mark.slow
def test_predict_prints_nothing_but_the_answer(finished):
    done = subprocess.run(
        [sys.executable, "-m", "examples.imdb_classification", "predict", finished, "Superb."],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 2 and done.stderr == ""


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/imdb/[!_]*.py")), ids=lambda f: f.stem)
def test_nothing_imports_a_backend(file):
    imported = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert not imported & {"tensorflow", "jax", "torch"}


# The command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "best", "--positions"],
        ["--model", "other"],
        ["--epochs", "0"],
        ["--validation", "1"],
        ["--data-dir", "x", "--sample"],
        ["predict"],
        ["predict", "runs/imdb-best"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


def test_default_is_a_recipe():
    assert {"post-positions", *imdb_classification.MODELS} == set(imdb_recipes.RECIPES)
