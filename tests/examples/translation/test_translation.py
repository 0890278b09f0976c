"""The program `examples.translation`: its batches, its models, and its runs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

if not all(map(importlib.util.find_spec, ("tokenizers", "sacrebleu"))):
    pytest.skip("the example needs the extra `translation`", allow_module_level=True)

import sacrebleu

from examples import pairs, shared, texts, translation
from examples.shared import UsageError
from keras_attention import masks

ROOT = Path(__file__).parents[3]
KINDS = ["shaw", "rotary", "sin-cos", "bahdanau", "luong"]
TINY = ["--sample", "--small", "--vocabulary-size", "400", "--batch-tokens", "512", "--beams", "2"]


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


def tiny(kind, dropout=0.2):
    """A model of 40 tokens."""
    keras.utils.set_random_seed(0)
    if kind in translation.POSITIONS:
        return translation.transformer(40, 1, 8, 16, 2, dropout, kind)
    return translation.recurrent(40, kind, 8, 8, dropout)


@pytest.fixture(scope="module")
def tokenizer():
    english, german = pairs.load(sample=True)[1]["train"]
    return texts.train_tokenizer("unigram", english + german, 200, ["[START]", "[STOP]"])


# Batches


def batches(tokenizer, sides, monkeypatch, batch_tokens=256, lengths=(24, 32, 48)):
    monkeypatch.setattr(translation, "LENGTHS", np.array(lengths))
    options = SimpleNamespace(batch_tokens=batch_tokens, seed=0, devices=1)
    return translation.batches(tokenizer, sides, options)


def test_every_pair_is_in_one_batch_of_its_length(tokenizer, monkeypatch):
    sides = pairs.load(sample=True)[1]["train"]
    made = batches(tokenizer, sides, monkeypatch)
    lengths = 1 + np.array([list(map(len, texts.encode(tokenizer, x))) for x in sides]).max(axis=0)
    for epoch in (0, 1):
        made.start(epoch)
        found = [index for batch in made.batches for index in batch]
        assert sorted(found) == np.flatnonzero(lengths <= 48).tolist()
        for batch in made.batches:
            length = made.arrays(batch)[1].shape[1]
            assert length in (24, 32, 48) and lengths[batch].max() <= length
            assert len(batch) * length <= 256
        # Few shapes: what is left over of a length fills up the next.
        assert len({(len(batch), made.lengths(batch)) for batch in made.batches}) <= 6
    assert found != [index for batch in (made.start(0), made.batches)[1] for index in batch]


def test_a_batch_is_shifted_by_one(tokenizer, monkeypatch):
    made = batches(tokenizer, [["A dog.", "She sits."], ["Der Hund.", "Sie"]], monkeypatch)
    (source, given), wanted = made.arrays(np.array([0, 1]))
    start, stop = translation.START, translation.STOP
    assert (given[:, 0] == start).all() and (
        given[:, 1:] == np.where(wanted == stop, 0, wanted)[:, :-1]
    ).all()
    for row, sentence in zip(
        [*source, *wanted], ["A dog.", "She sits.", "Der Hund.", "Sie"], strict=True
    ):
        tokens = row[row != 0].tolist()
        assert tokens[-1] == stop and tokenizer.decode(tokens) == sentence


def test_subwords_are_those_of_the_texts(tokenizer):
    english, german = pairs.load(sample=True)[1]["train"]
    again = texts.train_tokenizer("unigram", english + german, 200, ["[START]", "[STOP]"])
    assert again.to_str() == tokenizer.to_str()
    rows = texts.encode(tokenizer, english)
    assert [tokenizer.decode(row) for row in rows] == english
    assert min(map(min, rows)) > translation.STOP


def test_too_few_tokens_are_an_error():
    with pytest.raises(UsageError, match=r"No 5 tokens can be learned: .*large enough"):
        texts.train_tokenizer("unigram", ["ein hund"], 5, ["[START]", "[STOP]"])


def test_pairs_that_are_all_too_long_are_an_error(tokenizer, monkeypatch):
    with pytest.raises(UsageError, match="All pairs are longer than 2 subwords"):
        batches(tokenizer, [["A dog sits."], ["Ein Hund sitzt."]], monkeypatch, lengths=(1, 2))


# Models


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_training_graph(kind, tmp_path):
    model = tiny(kind)
    source = np.array([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]], "int32")
    given = np.array([[2, 7, 9], [2, 8, 8]], "int32")
    whole = array(model([source, given]))
    start, step = translation.steps(model)
    _, cache, memory = start(keras.ops.convert_to_tensor(source), given[:, :1], 3)
    for place in range(3):
        logits, cache = step(keras.ops.convert_to_tensor(given[:, place]), cache, memory)
        np.testing.assert_allclose(array(logits), whole[:, place], atol=2e-5)
    assert np.abs(whole[:, 1] - whole[:, 2]).max() > 1e-3

    # Without positions a reversed sentence would be the same to the decoder.
    turned = array(model([source[:1, ::-1], given[:1]]))
    assert np.abs(turned - whole[:1]).max() > 1e-4

    # The file needs nothing of the example.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(array(loaded([source, given])), whole, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shaw", "luong"])
def test_padding_changes_nothing(kind):
    model = tiny(kind)
    source = np.array([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]], "int32")
    given = np.array([[2, 7, 9, 11], [2, 8, 0, 0]], "int32")
    padded = [np.pad(tokens, [(0, 0), (0, 3)]) for tokens in (source, given)]
    outputs, real = array(model([source, given])), given != 0
    np.testing.assert_allclose(array(model(padded))[:, :4][real], outputs[real], atol=1e-5)
    # The second row's sentence alone is as long as it is.
    alone = array(model([source[1:, :3], given[1:, :2]]))
    np.testing.assert_allclose(outputs[1, :2], alone[0], atol=1e-5)

    # Step by step, from a padded sentence.
    start, step = translation.steps(model)
    found = []
    for sentences in (source, padded[0]):
        logits, (_, cache, memory) = (
            [],
            start(keras.ops.convert_to_tensor(sentences), given[:, :1], 2),
        )
        for tokens in ([2, 2], [7, 8]):
            said, cache = step(keras.ops.convert_to_tensor(tokens), cache, memory)
            logits.append(array(said))
        found.append(logits)
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


@pytest.mark.parametrize("kind", ["shaw", "luong"])
def test_masks_are_kept_through_every_layer(kind, monkeypatch):
    model = tiny(kind)
    source, given = np.array([[5, 6, 3, 0]], "int32"), np.array([[2, 7, 9, 0, 0, 0]], "int32")
    seen, call = {}, keras.layers.Layer.__call__

    def spy(layer, *args, **kwargs):
        output = call(layer, *args, **kwargs)
        first = output[0] if isinstance(output, (list, tuple)) else output
        if len(first.shape) == 3:
            seen.setdefault(layer.name, []).append((first.shape[1], masks.implicit(first)))
        return output

    monkeypatch.setattr(keras.layers.Layer, "__call__", spy)
    model([source, given], training=True)
    names = ["dropout", "encoder", "decoder", "output"]
    if kind == "shaw":
        names = ["encoder_0", model.encoder.name, "decoder_0", model.decoder.name]
    for name in names:
        for length, mask in seen[name]:
            tokens = source if length == 4 else given
            assert mask is not None and (array(mask) == (tokens != 0)).all(), name


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine"])
def test_schedules_rise_to_the_rate_and_fall(schedule):
    options = SimpleNamespace(learning_rate=2e-3, warmup=100, schedule=schedule)
    adam = translation.optimizer(options, 1000)
    rates = [float(adam._learning_rate(step)) for step in (1, 50, 100, 500, 1000)]
    np.testing.assert_allclose(rates[2], 2e-3, rtol=1e-4)
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
    assert (rates[4] < 1e-6) == (schedule == "cosine")


@pytest.mark.slow
def test_neither_padding_nor_company_changes_a_translation(tokenizer, monkeypatch):
    keras.utils.set_random_seed(0)
    model = translation.transformer(tokenizer.get_vocab_size(), 1, 16, 16, 2, 0.0, "shaw")
    # A new model hardly looks at the sentences, and translates all alike.
    for variable in model.decoder.trainable_variables:
        if "context_attention/value" in variable.path:
            variable.assign(20 * variable)
    sentences = ["She sits.", "A man runs in a house again.", "He waits today."]
    together = translation.translator(model, tokenizer, beams=1, rows=4)(sentences)
    pad = texts.pad
    monkeypatch.setattr(texts, "pad", lambda rows, multiple: pad(rows, multiple=3 * multiple))
    alone = [translation.translator(model, tokenizer, 1, rows=1)([x])[0] for x in sentences]
    shortest = min(map(len, together + alone))
    assert shortest > 10
    assert [x[:shortest] for x in together] == [x[:shortest] for x in alone]
    assert len(set(together)) > 1


# Runs


def train(*arguments, lengths=(16, 64)):
    """The status of a run with few lengths of batches, for each of which a program is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "LENGTHS", np.array(lengths))
        return translation.main([*TINY, *map(str, arguments)])


def figures(output):
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def curves(output):
    """What each epoch gave, without the time that it took."""
    return [{**epoch, "seconds": None} for epoch in figures(output)["epochs"]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The output of an uninterrupted run of two epochs."""
    output = tmp_path_factory.mktemp("translation") / "run"
    assert train("--epochs", 2, "--output", output) == 0
    return output


@pytest.mark.slow
def test_the_run_leaves_what_it_says(finished):
    said = figures(finished)
    assert said["finished"] and said["settings"]["sizes"]["train"] == 392
    names = {"alignment.png", "figures.json", "model.keras", "test.txt", "tokenizer.json"}
    assert {path.name for path in finished.iterdir()} == names
    translations = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    english, german = pairs.load(sample=True)[1]["test"]
    assert said["test_bleu"] == sacrebleu.corpus_bleu(translations, [german]).score
    assert said["bleu_signature"].startswith("nrefs:1|case:mixed|")
    # The model that is kept has the mean of the weights, which the last epoch was measured with.
    _, model = shared.load_run(finished, translation.PROGRAM)
    tokenizer = texts.load_tokenizer(finished)
    with pytest.MonkeyPatch.context() as patch:
        validation = batches(
            tokenizer, pairs.load(sample=True)[1]["validation"], patch, 512, (16, 64)
        )
    model.compile(loss=translation.ka.losses.SmoothedCrossentropy())
    loss = model.evaluate(validation, verbose=0)
    np.testing.assert_allclose(said["epochs"][-1]["val_loss"], loss, rtol=1e-4)
    greedily = translation.translator(model, tokenizer, 1)(english)
    assert said["test_greedy_bleu"] == sacrebleu.corpus_bleu(greedily, [german]).score
    losses = [epoch["loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0]


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_figures(finished, tmp_path, interrupted, capsys):
    output = tmp_path / "run"
    # Without a search, which takes as long to compile as all else.
    command = ["--epochs", 2, "--output", output, "--beams", 1]
    with interrupted(1):
        assert train(*command) == 130
    assert curves(output) == curves(finished)[:1]
    assert train(*command) == 0
    assert "Resuming after epoch 1" in capsys.readouterr().out
    for found, expected in zip(curves(output), curves(finished), strict=True):
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
        np.testing.assert_allclose(found["val_loss"], expected["val_loss"], rtol=1e-5)
    assert train(*command[:1], 3, *command[2:]) == 2
    assert "epochs is 2 there and 3 now" in capsys.readouterr().err


@pytest.mark.slow
def test_a_fresh_process_translates(finished, tmp_path):
    english = pairs.load(sample=True)[1]["test"][0][:3]
    command = [sys.executable, "-m", translation.PROGRAM, "translate", str(finished)]
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "", "日本", *english, "--beams", "2", "--picture", str(tmp_path / "x.png")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = (finished / "test.txt").read_text(encoding="utf-8").split("\n")[:3]
    assert done.stdout.split("\n")[:-1] == ["", "", *expected]
    assert "'日本' has no words that the model has seen." in done.stderr
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_pictures_of_other_kinds(finished, tmp_path, capsys):
    command = ["translate", str(finished), "Two dogs run.", "--picture"]
    assert translation.main([*command, tmp_path / "x.svg"]) == 0
    assert "<svg" in (tmp_path / "x.svg").read_text()
    assert translation.main([*command, tmp_path / "x.xyz"]) == 2
    assert "x.xyz: Format 'xyz' is not supported" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_recurrent_models_run(tmp_path, name):
    command = ["--limit", 40, "--epochs", 1, "--output", tmp_path / name, "--model", name]
    assert train(*command, "--beams", 1) == 0
    assert figures(tmp_path / name)["finished"] and (tmp_path / name / "alignment.png").exists()


# The command line


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "other"],
        ["--epochs", "0"],
        ["--vocabulary-size", "10"],
        ["--batch-tokens", "60"],
        ["--dropout", "1"],
        ["--positions", "none"],
        ["--learning-rate", "0"],
        ["--schedule", "constant"],
        ["--data-dir", "x", "--sample"],
        ["translate"],
        ["translate", "runs/translation-transformer"],
        ["translate", "runs/translation-transformer", "Hello.", "--beams", "0"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        translation.main(arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


@pytest.mark.any_backend
def test_all_options_are_in_the_help(capsys):
    with pytest.raises(SystemExit) as exit_:
        translation.main(["--help"])
    said = capsys.readouterr().out
    assert not exit_.value.code and said.isascii()
    for option in ("--output", "--seed", "--devices", "--jit", "--mixed-precision", "--beams"):
        assert f"  {option}" in said


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "luong", "--positions", "shaw"], "--positions is for the transformer"),
        (["--devices", "4", "--model-parallel", "3"], "must divide the --devices 4"),
        (["--data-dir", "nowhere"], "nowhere is not a directory"),
        (["--sample", "--source", "de"], "--source and --target are not for --sample"),
        (["translate", "nowhere", "Hello."], "figures.json cannot be read"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert translation.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
