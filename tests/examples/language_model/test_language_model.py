"""`examples.language_model`: its command line, texts, model, runs and what it generates."""

import gzip
import sys
import types

import keras
import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the example needs the extra `examples`")
pytest.importorskip("filelock", reason="the example needs the extra `examples`")

from tokenizers.decoders import DecodeStream

from examples import language_model, shared, texts
from examples.language_model import POSITIONS, main
from tests.examples.language_model.conftest import SIZES, TINY, array, dialogues, figures

VOCABULARY = 11
NUMBERS = np.array([[3, 1, 4, 1, 5, 9, 2, 6]], "int32")
STRANGE = "  Where?\n\n\tZoë läuft für 5 €;  日本 🙂\nA\u00a0B "


def error(capsys, *arguments):
    """The one line that a wrong command line ends with."""
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    return err


# The command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--preset", "pretrained"],
        ["--tokens", "words"],
        ["--vocabulary-size", "10"],
        ["--context", "1"],
        ["--steps", "0"],
        ["--dropout", "1"],
        ["--learning-rate", "0"],
        ["--positions", "none"],
        ["--data", "x", "--sample"],
        ["generate", "runs/language-model"],
        ["generate", "runs/language-model", "Hello", "--temperature", "-1"],
        ["generate", "runs/language-model", "Hello", "--top-k", "0"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocabulary-size", 500], "--vocabulary-size is for --tokens subwords"),
        (["--steps", 300], "--steps must be a multiple of --measure-every 250"),
        (["--pretrained", "{}", "--layers", 2], "--layers cannot be given with --pretrained"),
        (["--pretrained", "{}", "--preset", "small"], "--preset cannot be given with"),
        (["--pretrained", "{}/none"], "is not a directory"),
        (["--pretrained", "{}"], "has no config.json"),
        (["--data", "{}/none"], "none cannot be read: No such file"),
        (["--data", "{}/blank.txt"], "blank.txt is empty"),
        (["--data", "{}/short.txt", "--context", 8], "has 2 tokens, not more than --context 8"),
        (["--data", "{}/short.txt", "--heads", 5], "--dim 192 must be a multiple of 10"),
    ],
)
def test_wrong_options_are_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("Too short for it.")
    arguments = [str(part).format(tmp_path) for part in arguments]
    assert message in error(capsys, *arguments, "--output", tmp_path / "run")


def test_generate_without_a_usable_model(finished, tmp_path, capsys):
    folder = tmp_path / "run"
    assert "figures.json cannot be read" in error(capsys, "generate", folder, "Hello")
    assert "never seen these characters: '日'" in error(capsys, "generate", finished, "日A")
    assert "'' has no tokens" in error(capsys, "generate", finished, "")
    assert "given as a text" in error(capsys, "generate", finished, finished)
    with shared.Run(folder, language_model.PROGRAM, {"context": 8}) as run:
        run.begin()
        run.finish()
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(folder / "model.keras")
    assert "has a Sequential, not a model" in error(capsys, "generate", folder, "Hello")


# Texts and tokens


class FakeBuilder:
    """Stands in for TensorFlow Datasets' builder of tiny_shakespeare."""

    prepared = True

    def is_prepared(self):
        return self.prepared

    def as_dataset(self, split, batch_size):
        return {"text": np.array([f"{split}. ".encode()])}


def test_where_texts_come_from(tmp_path, monkeypatch, capsys):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress("é x".encode()))
    assert language_model.load_text(path) == ("é x", "text.txt.gz (file)")
    module = types.SimpleNamespace(builder=lambda *_, **__: FakeBuilder(), as_numpy=lambda x: x)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    text, name = language_model.load_text()
    assert text == "train. validation. test. " and "tiny_shakespeare" in name
    assert capsys.readouterr().err == ""

    def refuse(address, timeout):
        raise OSError("unreachable")

    monkeypatch.setattr(FakeBuilder, "prepared", False)
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


def tiny(positions="rotary", layers=1):
    keras.utils.set_random_seed(0)
    sizes = {**SIZES, "layers": layers, "dropout": 0.0}
    return language_model.build(VOCABULARY, **sizes, positions=positions)


@pytest.mark.parametrize("positions", POSITIONS)
def test_order_and_padding(positions):
    model = tiny(positions, layers=2)
    before = array(model(NUMBERS))
    changed = NUMBERS.copy()
    changed[0, 4] = 10
    difference = np.abs(array(model(changed)) - before).max(axis=-1)[0]
    assert difference[:4].max() < 1e-6 < 1e-4 < difference[4:].min()
    # The model knows the order of what came before.
    swapped = NUMBERS[:, [1, 0, *range(2, 8)]]
    assert np.abs(array(model(swapped)) - before)[0, -1].max() > 1e-5
    # Padding on the left changes nothing, whatever it is.
    padded = np.concatenate([np.full((1, 3), 7, "int32"), NUMBERS[:, :5]], axis=1)
    found = array(model(padded, mask=np.arange(8)[None] >= 3))
    np.testing.assert_allclose(found[:, 3:], before[:, :5], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_generation_with_caches_is_the_whole_model(positions):
    context, half = SIZES["context"], SIZES["context"] // 2
    model, rng = tiny(positions, layers=2), np.random.default_rng(0)
    for prompt in ([3], [3, 1, 4, 1, 5, 9, 2]):
        found, known = [], prompt[-half:]

        def choose(logits, found=found):
            found.append(logits)
            return int(rng.integers(VOCABULARY))

        numbers = language_model.next_tokens(model, context, prompt, choose)
        for place, number in zip(range(12), numbers, strict=False):
            # The step after a full cache reads the later half of it again.
            if place and place % (context - half + 1) == 0:
                known = known[-half:]
            padded = np.array([[*known, *[0] * (context - len(known))]], "int32")
            logits = array(model(padded))[0, len(known) - 1]
            np.testing.assert_allclose(found[place], logits, atol=1e-5)
            known = [*known, number]


def test_tokens_are_drawn_by_their_probabilities():
    logits, rng = np.log(np.array([1, 2, 4], "float32")), np.random.default_rng(0)
    counts = np.bincount([language_model.draw(logits, rng, 0.5, 2) for _ in range(2000)])
    np.testing.assert_allclose(counts / 2000, [0, 0.2, 0.8], atol=0.03)
    assert {language_model.draw(logits, rng, t, k) for t, k in ((0, None), (1e-9, 3), (1, 1))} == {
        2
    }


def test_the_rate_rises_and_falls_to_a_tenth():
    model = tiny()
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
def test_the_run_leaves_what_it_says(text_file, finished):
    said = figures(finished)
    assert said["finished"] and len(said["epochs"]) == 2
    assert {path.name for path in finished.iterdir()} == {
        "figures.json",
        "model.keras",
        "tokenizer.json",
    }
    model, tokenizer, context = language_model.load(finished)
    text = text_file.read_text(encoding="utf-8")
    held_out = text[int(0.9 * len(text)) :]
    assert said["characters"]["validation"] == len(held_out)
    # The loss of each character but the first, in windows, by hand.
    numbers = language_model.encode(tokenizer, held_out)
    total, count = 0.0, 0
    for start in range(0, len(numbers) - context, context):
        window = numbers[start : start + context + 1]
        logits = array(keras.ops.log_softmax(model(window[None, :-1])))[0]
        total -= np.take_along_axis(logits, window[1:, None], axis=1).sum()
        count += context
    assert said["validation_tokens"] == count > len(numbers) - 1 - context
    for name in ("validation_loss", "validation_loss_per_character"):
        np.testing.assert_allclose(said[name], total / count, rtol=1e-5)
    np.testing.assert_allclose(said["validation_perplexity"], np.exp(total / count), rtol=1e-5)
    # All windows are fewer than those of a measurement.
    np.testing.assert_allclose(said["epochs"][-1]["val_loss"], total / count, rtol=1e-5)
    losses = [epoch["val_loss"] for epoch in said["epochs"]]
    assert losses[1] < losses[0] < 1.5 * np.log(tokenizer.get_vocab_size())


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_figures(
    text_file, finished, tmp_path, interrupted, capsys
):
    options = [*TINY, "--dropout", 0.1, "--data", text_file, "--output", tmp_path]
    with interrupted(1):
        assert main(options) == 130
    assert main(options) == 0
    assert "Resuming after epoch 1" in capsys.readouterr().out
    for one, other in zip(figures(tmp_path)["epochs"], figures(finished)["epochs"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert figures(tmp_path)["validation_loss"] == figures(finished)["validation_loss"]


def test_other_settings_and_finished_runs(text_file, finished, capsys):
    options = [*TINY, "--data", text_file, "--output", finished]
    assert "dropout is 0.1 there and 0.0 now" in error(capsys, *options)
    options += ["--dropout", 0.1]
    assert main(options) == 0
    assert f"validation_loss: {figures(finished)['validation_loss']}" in capsys.readouterr().out


@pytest.mark.slow
def test_generate_prints_the_prompt_and_what_comes_after_it(finished, capsys):
    def said(*options):
        assert main(["generate", finished, "ANNA:\n", "--length", 20, *options]) == 0
        return capsys.readouterr().out

    first = said()
    assert first.startswith("ANNA:\n") and len(first) == len("ANNA:\n") + 20 + 1
    assert first == said() != said("--seed", 1)


@pytest.mark.slow
def test_subwords_in_mixed_precision(text_file, tmp_path, capsys):
    policy = keras.config.dtype_policy()
    options = ["--tokens", "subwords", "--vocabulary-size", 400, "--mixed-precision"]
    try:
        assert main([*TINY, *options, "--data", text_file, "--output", tmp_path]) == 0
    finally:
        keras.config.set_dtype_policy(policy)
    model, tokenizer, _ = language_model.load(tmp_path)
    assert model.dtype_policy.name == "mixed_bfloat16" and tokenizer.get_vocab_size() <= 400
    said = figures(tmp_path)
    assert said["validation_loss_per_character"] < 0.6 * said["validation_loss"]
