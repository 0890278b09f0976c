"""`examples.language_model`: texts, model, runs and what it generates."""

import gzip
import sys
import types

import keras
import numpy as np
import pytest
from tokenizers.decoders import DecodeStream

from examples import language_model, shared, texts
from examples.language_model import main
from tests.arrays import numpy
from tests.examples.conftest import dialogues, ran

SIZES = {"layers": 1, "heads": 2, "dim": 16, "context": 8}
VOCABULARY = 11
STRANGE = "  Where?\n\n\tZoë läuft für 5 €;  日本 🙂\nA\u00a0B "


# Texts and tokens


def test_where_texts_come_from(tmp_path, monkeypatch, capsys):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress("é x".encode()))
    assert language_model.load_text(path) == ("é x", "text.txt.gz (file)")
    # TensorFlow Datasets, with and without tiny_shakespeare.
    builder = types.SimpleNamespace(
        is_prepared=lambda: True,
        as_dataset=lambda split, batch_size: {"text": np.array([f"{split}. ".encode()])},
    )
    module = types.SimpleNamespace(builder=lambda *_, **__: builder, as_numpy=lambda x: x)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    text, name = language_model.load_text()
    assert text == "train. validation. test. " and "tiny_shakespeare" in name
    assert capsys.readouterr().err == ""

    def refuse(address, timeout):
        raise OSError("unreachable")

    monkeypatch.setattr(builder, "is_prepared", lambda: False)
    monkeypatch.setattr(shared.socket, "create_connection", refuse)
    monkeypatch.setattr(shared.urllib.request, "getproxies", dict)
    for options, reason in (({}, "OSError: unreachable"), ({"use_sample": True}, "--sample")):
        text, name = language_model.load_text(**options)
        assert text == language_model.SAMPLE.read_text(encoding="utf-8")
        err = capsys.readouterr().err
        assert "THIS IS NOT tiny_shakespeare" in err and reason in err and "sample" in name


def test_characters_are_all_of_the_text_and_no_others():
    tokens = texts.characters("banana\n")
    assert tokens.get_vocab() == {"\n": 0, "a": 1, "b": 2, "n": 3}
    np.testing.assert_array_equal(language_model.encode(tokens, "nab\n" * 9, 5), [3, 1, 2, 0] * 9)


@pytest.mark.parametrize("kind", ["characters", "subwords"])
def test_what_is_decoded_is_what_was_encoded(kind):
    tokens = texts.characters(STRANGE)
    if kind == "subwords":
        tokens = texts.train_tokenizer("bpe", [dialogues(100)], 400)
        text = dialogues(9)
        assert len(language_model.encode(tokens, text)) < 0.6 * len(text)
    numbers = language_model.encode(tokens, STRANGE)
    assert numbers.dtype == "int32" and numbers.max() < tokens.get_vocab_size()
    assert tokens.decode(numbers) == STRANGE
    # A character comes whole, whatever the number of its tokens.
    stream = DecodeStream(ids=numbers.tolist())
    pieces = [stream.step(tokens, number) or "" for number in numbers.tolist()]
    assert "".join(pieces) == STRANGE and "🙂" in pieces


# The model


def test_the_rate_rises_and_falls_to_a_tenth():
    model = language_model.build(VOCABULARY, **SIZES, dropout=0.0, positions="rotary")
    language_model.compile_model(model, steps=1000, learning_rate=2e-3, warmup_steps=100)
    rates = [float(model.optimizer._learning_rate(step)) for step in (0, 50, 100, 550, 1000)]
    np.testing.assert_allclose(np.array(rates)[[2, 4]], [2e-3, 2e-4], rtol=1e-4)
    assert rates[0] < rates[1] < rates[2] > rates[3] > rates[4]
    model.optimizer.build(model.trainable_variables)
    decayed = {v.name: model.optimizer._use_weight_decay(v) for v in model.trainable_variables}
    assert decayed == {"embeddings": True, "kernel": True, "gamma": False, "beta": False}


def test_windows():
    numbers = np.arange(20)
    given, wanted = language_model.windows(numbers, 8, np.array([0, 3, 11]))
    assert given.shape == wanted.shape == (3, 8) and (wanted == given + 1).all()
    given, _ = language_model.spread(numbers, 4, 100)
    assert given[:, 0].tolist() == [0, 4, 8, 12]
    # Few of them, and as many as devices can share.
    assert language_model.spread(numbers, 4, 8)[0][:, 0].tolist() == [0, 8]
    assert len(language_model.spread(numbers, 4, 12, 2)[0]) == 4


# Runs


@pytest.mark.slow
def test_a_run_leaves_what_it_says_and_generates(text_file, tmp_path, capsys):
    finished = tmp_path / "run"
    options = ["--preset", "small", "--batch-size", 4, "--steps", 6, "--measure-every", 3]
    options += [part for name, size in SIZES.items() for part in (f"--{name}", size)]
    said = ran(main, finished, *options, "--dropout", 0.1, "--data", text_file)
    assert len(said["epochs"]) == 2
    model, tokenizer, context = language_model.load(finished)
    text = text_file.read_text(encoding="utf-8")
    held_out = text[int(0.9 * len(text)) :]
    assert said["characters"]["validation"] == len(held_out)
    # The loss of each character but the first, in windows, by hand.
    numbers = language_model.encode(tokenizer, held_out)
    starts = range(0, len(numbers) - context, context)
    windows = np.array([numbers[start : start + context + 1] for start in starts])
    logits = numpy(keras.ops.log_softmax(model(windows[:, :-1])))
    loss = -np.take_along_axis(logits, windows[:, 1:, None], axis=2).mean()
    assert said["validation_tokens"] == windows[:, 1:].size > len(numbers) - 1 - context
    for name in ("validation_loss", "validation_loss_per_character"):
        np.testing.assert_allclose(said[name], loss, rtol=1e-5)
    np.testing.assert_allclose(said["validation_perplexity"], np.exp(loss), rtol=1e-5)
    # All windows are fewer than those of a measurement.
    np.testing.assert_allclose(said["epochs"][-1]["val_loss"], loss, rtol=1e-5)
    losses = [epoch["val_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] < 1.5 * np.log(tokenizer.get_vocab_size())

    def generated(*options):
        capsys.readouterr()
        assert main(["generate", finished, "ANNA:\n", "--length", 20, *options]) == 0
        return capsys.readouterr().out

    first = generated()
    assert first.startswith("ANNA:\n") and len(first) == len("ANNA:\n") + 20 + 1
    assert first == generated() != generated("--seed", 1)
    likeliest = generated("--temperature", 0)
    assert likeliest == generated("--temperature", 0, "--seed", 1) == generated("--top-k", 1)
