"""The program `examples.translation`: its batches, its models, and its runs."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import sacrebleu

from examples import pairs, shared, texts, translation
from tests.arrays import numpy
from tests.examples.conftest import ran

KINDS = ["shaw", "rotary", "sin-cos", "bahdanau", "luong"]
TINY = ["--sample", "--small", "--vocabulary-size", "400", "--batch-tokens", "512", "--beams", "2"]


def tiny(kind, dropout=0.2):
    """A model of 40 tokens."""
    keras.utils.set_random_seed(0)
    if kind in translation.POSITIONS:
        return translation.transformer(40, 1, 8, 16, 2, dropout, kind)
    return translation.recurrent(40, kind, 8, 8, dropout)


def subwords():
    english, german = pairs.load(sample=True)[1]["train"]
    return texts.train_tokenizer("unigram", english + german, 200, ["[START]", "[STOP]"])


@pytest.fixture(scope="module")
def tokenizer():
    return subwords()


def test_subwords_are_those_of_the_texts(tokenizer):
    assert subwords().to_str() == tokenizer.to_str()


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


# Models


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_the_training_graph(kind, tmp_path):
    model = tiny(kind)
    source = np.array([[5, 6, 7, 8, 3], [9, 5, 3, 0, 0]], "int32")
    given = np.array([[2, 7, 9], [2, 8, 8]], "int32")
    whole = numpy(model([source, given]))
    of_itself = isinstance(model, translation.ka.EncoderDecoder)
    start, step = (model.start, model.step) if of_itself else translation.steps(model)
    _, cache, memory = start(keras.ops.convert_to_tensor(source), given[:, :1], 3)
    for place in range(3):
        logits, cache = step(keras.ops.convert_to_tensor(given[:, place]), cache, memory)
        np.testing.assert_allclose(numpy(logits), whole[:, place], atol=2e-5)
    assert np.abs(whole[:, 1] - whole[:, 2]).max() > 1e-3

    # Without positions a reversed sentence would be the same to the decoder.
    turned = numpy(model([source[:1, ::-1], given[:1]]))
    assert np.abs(turned - whole[:1]).max() > 1e-4

    # The file needs nothing of the example.
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(loaded([source, given])), whole, atol=1e-6)


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine"])
def test_schedules_rise_to_the_rate_and_fall(schedule):
    options = SimpleNamespace(learning_rate=2e-3, warmup=100, schedule=schedule)
    adam = translation.optimizer(options, 1000)
    rates = [float(adam._learning_rate(step)) for step in (1, 50, 100, 500, 1000)]
    np.testing.assert_allclose(rates[2], 2e-3, rtol=1e-4)
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
    assert (rates[4] < 1e-6) == (schedule == "cosine")


# Runs


def train(output, *arguments):
    """A run with few lengths of batches, for each of which a program is compiled."""
    files = "alignment.png", "model.keras", "test.txt", "tokenizer.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "LENGTHS", np.array((16, 64)))
        return ran(translation.main, output, *TINY, *arguments, files=files)


@pytest.mark.slow
def test_a_run_leaves_what_it_says(tmp_path, monkeypatch):
    said = train(tmp_path, "--epochs", 2, "--limit", 120)
    assert said["settings"]["sizes"]["train"] == 120
    translations = (tmp_path / "test.txt").read_text(encoding="utf-8").split("\n")[:-1]
    english, german = pairs.load(sample=True)[1]["test"]
    assert said["test_bleu"] == sacrebleu.corpus_bleu(translations, [german]).score
    assert said["bleu_signature"].startswith("nrefs:1|case:mixed|")
    # The model that is kept has the mean of the weights, which the last epoch was measured with.
    _, model = shared.load_run(tmp_path, translation.PROGRAM)
    tokenizer = texts.load_tokenizer(tmp_path)
    sides = pairs.load(sample=True)[1]["validation"]
    validation = batches(tokenizer, sides, monkeypatch, 512, (16, 64))
    model.compile(loss=translation.ka.losses.SmoothedCrossentropy())
    loss = model.evaluate(validation, verbose=0)
    np.testing.assert_allclose(said["epochs"][-1]["val_loss"], loss, rtol=1e-4)
    greedily = translation.translator(model, tokenizer, 1)(english)
    assert said["test_greedy_bleu"] == sacrebleu.corpus_bleu(greedily, [german]).score
    losses = [epoch["loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0]


@pytest.mark.slow
def test_a_recurrent_model_runs(tmp_path):
    train(tmp_path, "--limit", 40, "--epochs", 1, "--beams", 1, "--model", "luong")
