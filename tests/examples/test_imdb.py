"""`examples.imdb_classification`: reviews, tokens, n-grams, its models, and runs."""

import collections
from unittest import mock

import keras
import numpy as np
import pytest

from examples import (
    imdb_classification,
    imdb_models,
    imdb_ngrams,
    imdb_reviews,
    imdb_words,
    texts,
    training,
)
from examples.imdb_classification import main
from examples.imdb_reviews import Reviews
from examples.shared import UsageError
from tests.examples.conftest import ran

TEXTS = ["superb", "a dull plot , dull", "the plot was superb and the plot was not dull at all"]


def settings_of(name, **changes):
    return {"model": name, "max_length": 1000, "vocabulary_size": 100, **changes}


def tokenizer_of(name, texts=TEXTS * 2, size=100):
    return imdb_classification.learn_tokenizer(texts, name, size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An aclImdb folder of 64 + 32 synthetic reviews."""
    root = tmp_path_factory.mktemp("data") / "aclImdb"
    for split, count, seed in (("train", 64, 0), ("test", 32, 1)):
        for number, (text, label) in enumerate(
            zip(*imdb_reviews.generate(count, seed), strict=True)
        ):
            path = root / split / ("pos" if label else "neg") / f"{number}_{9 if label else 2}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return root


# Reviews


def test_limit_and_split():
    reviews = Reviews(list("abcdefghij"), np.array([0] * 7 + [1] * 3))
    limited = reviews.limited(4, seed=0)
    assert limited.labels.tolist() == [0, 0, 1, 1]
    assert limited.texts == reviews.limited(4, seed=0).texts
    rest, held_out = reviews.split(0.2, seed=0)
    assert len(held_out) == 2 and sorted(rest.texts + held_out.texts) == reviews.texts
    assert [len(part) for part in reviews.split(0.99, seed=0)] == [1, 9]
    assert [len(part) for part in limited.limited(2, 0).split(0.8, seed=0)] == [1, 1]
    # Neighbors, which may be of one film, are held out together.
    reviews = Reviews([str(i) for i in range(1000)], np.arange(1000) % 2)
    numbers = {int(text) for text in reviews.split(0.2, seed=0)[1].texts}
    assert len(numbers) == 200
    assert all(number // 10 * 10 + i in numbers for number in numbers for i in range(10))


def test_sample_is_reproducible_balanced_and_imperfect():
    texts, labels = imdb_reviews.generate(2000, seed=3)
    again, _ = imdb_reviews.generate(2000, seed=3)
    assert texts == again and 900 < labels.sum() < 1100
    assert len(set(texts)) > 1800 and not [text for text in texts if set(text) & set("{}|")]
    # One label in fifty is wrong.
    words = ("horrible", "terrible", "boring", "it was horrible", "what a waste")
    blame = [y for t, y in zip(texts, labels, strict=True) if t.lower().startswith(words)]
    assert len(blame) > 5 and np.mean(blame) < 0.3


# Tokens


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
    ],
)
def test_tokens(text, words, with_punctuation):
    for name, expected in (("post", words), ("ngrams", with_punctuation)):
        tokenizer = tokenizer_of(name, [text] * 2, 1000)
        assert tokenizer.encode(imdb_classification.clean(text)).tokens == expected.split()


def test_words_are_numbered_by_frequency():
    tokenizer = tokenizer_of("post", ["the the the film film is"] * 2, 4)
    rows = imdb_classification.encode(tokenizer, ["The film is!", "", "?!"], settings_of("post"))
    assert [row.tolist() for row in rows] == [[2, 3, 1], [1], [1]]
    assert tokenizer_of("ngrams", ["a b b", "a c"]).encode("a b c").ids == [2, 3, 1]


@pytest.mark.parametrize("name", ["post", "attention"])
def test_the_end_or_both_ends_of_a_long_review_are_kept(name):
    for most in (1, 4, 5):
        for length in (1, 4, 5, 6, 11):
            words = [f"w{i}" for i in range(length)]
            head = 0 if name == "post" else most // 2
            expected = [w for i, w in enumerate(words) if i < head or length - i <= most - head]
            kept = imdb_classification.kept(words, settings_of(name, max_length=most))
            assert kept == (words if length <= most else expected)


# N-grams, against Python's own counting

WORDS = ["a b a b c", "b a b", "c c c a b", "d a b c", "e"]
LABELS = [1, 1, 0, 0, 0]
UNKNOWN = "a zz b a b"


def numbered(least=1):
    """Rows of WORDS and of UNKNOWN, how many n-grams were learned, and of how many words."""
    tokenizer = tokenizer_of("post", WORDS)
    rows = [np.array(tokenizer.encode(text).ids, "int32") for text in (*WORDS, UNKNOWN)]
    size = tokenizer.get_vocab_size()
    with mock.patch.object(imdb_ngrams, "MIN_REVIEWS", least):
        learned = imdb_ngrams.learn(rows[:-1], size)
    rows = [imdb_ngrams.add_numbers(row, learned, size) for row in rows]
    return rows, sum(map(len, learned.values())), size


@pytest.mark.parametrize("least", [1, 2, 9])
def test_numbers_are_those_of_frequent_ngrams(least):
    rows, total, _ = numbered(least)
    seen = {}

    def grams(text, order):
        words = text.split()
        return [tuple(words[max(0, i - order + 1) : i + 1]) for i in range(len(words))]

    for order in (1, 2, 3):
        counts = collections.Counter(x for text in WORDS for x in set(grams(text, order)))
        for text, numbers in zip((*WORDS, UNKNOWN), rows, strict=True):
            found = grams(text, order)
            for i, (gram, number) in enumerate(zip(found, numbers[:, order], strict=True)):
                if len(gram) < order or counts[gram] < least or gram in found[:i]:
                    assert number == 0
                else:
                    assert seen.setdefault(gram, number) == number > 0
    assert len(set(seen.values())) == len(seen) == total
    with pytest.raises(UsageError, match="need a smaller --vocabulary-size"):
        imdb_ngrams.learn([], 2**21)


def test_log_ratios():
    (*rows, _), ngrams, size = numbered()
    total = 1 + ngrams
    ratios = imdb_ngrams.log_ratios(rows, LABELS, total)
    number = rows[0][1, 2]  # "a b"
    # It is in both of the two positive reviews, and in two of the three negative ones.
    assert ratios[number] == pytest.approx(np.log((2 + 1) / (2 + 2) / ((2 + 1) / (3 + 2))))
    assert ratios[0] == 0 and ratios.shape == (total,)
    for name in imdb_models.NGRAMS:
        model = imdb_models.build(settings_of(name), size, total)
        imdb_ngrams.set_ratios(model, rows, LABELS)
        (table,) = model.get_layer("log_ratio").get_weights()
        np.testing.assert_array_equal(table[:, 0], ratios)
        assert not np.any(model.get_layer("weight").get_weights())


# Models


def small_model(name):
    """A model with weights at random, and the function from a text to its row."""
    tokenizer, settings = tokenizer_of(name), settings_of(name)
    size = tokenizer.get_vocab_size()
    count, learned = 0, None
    if name in imdb_models.NGRAMS:
        rows = imdb_classification.encode(tokenizer, TEXTS * 2, settings)
        learned = imdb_ngrams.learn(rows, size)
        count = 1 + sum(map(len, learned.values()))

    def row(text):
        (found,) = imdb_classification.encode(tokenizer, [text], settings)
        return imdb_ngrams.add_numbers(found, learned, size) if learned else found

    model = imdb_models.build(settings, size, count)
    rng = np.random.default_rng(1)
    for variable in model.variables if name == "ngrams" else model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) / 4)
    return model, row


def test_what_words_add_sums_to_the_logit():
    model, row_of = small_model("attention")
    for text in TEXTS:
        row = row_of(text)
        for padding in (0, 3):  # It adds nothing.
            numbers = np.pad(row, (0, padding))[None]
            shares, bias = imdb_models.contributions(model, numbers)
            assert not shares[len(row) :].any() and np.abs(shares[: len(row)]).min() > 1e-4
            probability = model.predict_on_batch(numbers)[0, 0]
            logit = np.log(probability / (1 - probability))
            assert logit == pytest.approx(shares.sum() + bias, rel=1e-4, abs=1e-5)


def test_the_wide_model_adds_the_evidence_of_ngrams():
    model, row_of = small_model("wide")
    numbers, logits = row_of(TEXTS[2])[None], []
    ratio, weight = (model.get_layer(name).get_weights()[0] for name in ("log_ratio", "weight"))
    evidence = (weight * ratio)[numbers[0, :, 1:], 0].sum(axis=1)
    for change in (1, 0):
        model.get_layer("weight").set_weights([change * weight])
        probability = model.predict_on_batch(numbers)[0, 0]
        logits.append(np.log(probability / (1 - probability)))
    expected = 32 * np.sqrt(len(evidence)) * imdb_models.weights(model, numbers) @ evidence
    assert logits[0] - logits[1] == pytest.approx(expected, rel=1e-4)
    assert abs(expected) > 0.01


def test_ngrams_weigh_all_words_alike_at_first():
    model = imdb_ngrams.build(50, 60)
    np.testing.assert_allclose(imdb_models.weights(model, np.full((1, 5, 4), 3)), 1 / 5, rtol=1e-5)


@pytest.mark.parametrize("name", ["post", "post-positions", "wide", "ngrams"])
def test_percentages_sum_to_100(name):
    model, row_of = small_model(name)
    for text in (*TEXTS, "the superb plot was not all dull at " * 30 + "zyxxy"):
        shares = imdb_models.weights(model, row_of(text)[None])
        said = imdb_words.percentages(text.split(), shares)
        percentages = [float(part.split()[-1].rstrip("%")) for part in said.split("%, ")]
        assert sum(percentages) == pytest.approx(100, abs=0.5)


def test_words_for_and_against():
    names, shares = ["a", "b", "a", "c", "d"], np.array([0.5, -1.0, 0.25, 0.001, 2.0])
    assert imdb_words.signed(names, shares, 1) == "d +2.00, a +0.75"
    assert imdb_words.signed(names, shares, -1) == "b -1.00"
    assert imdb_words.signed(names, np.zeros(5), 1) == "nothing"
    many = list(map(str, range(10))), np.full(10, 0.5)
    assert imdb_words.signed(*many, 1).endswith("7 +0.50, others +1.00")
    assert imdb_classification.verdict(0.25) == "negative, 75.0% sure"


# Runs


@pytest.mark.parametrize("name", ["attention", "post", "best"])
def test_a_run_trains_saves_and_predicts(folder, tmp_path, capsys, name):
    options = ["--vocabulary-size", 200, "--max-length", 12, "--epochs", 3]
    if name == "best":
        options = ["--validation", 0.25, "--mixed-precision", "--epochs", 1]
    files = {"model.keras", "tokenizer.json"}
    files |= {"best": {"ngrams.npz"}, "attention": {"words.png"}}.get(name, set())
    run, page = tmp_path / "run", tmp_path / "page.html"
    try:
        given = "--model", name, "--data-dir", folder
        said = ran(main, run, *given, *options, files=files)
    finally:
        keras.config.set_dtype_policy("float32")
    assert ("val_accuracy" in said["epochs"][0]) == (name == "best")
    assert 0.0 <= said["test_accuracy"] <= 1.0 and said["dataset"] == "imdb (aclImdb folder)"
    assert said["settings"]["data_dir"] is True and not said["settings"]["sample"]
    if name == "best":
        assert said["sizes"] == {"train": 48, "validation": 16, "test": 32}
    assert f"predict {run} " in capsys.readouterr().out
    not_utf_8 = b"Am\xe9lie dull".decode("utf-8", "surrogateescape")
    given = ["The plot was superb, zyxxy.", "dull " * 20_000, not_utf_8, "", "?!", "zyxxy xyzzy"]
    # To "ngrams", marks are words.
    given = given[:1] if name == "best" else given
    assert main(["predict", run, *given, "--page", page]) == 0
    assert ("superb" if name == "best" else "dull") in page.read_text()
    lines = capsys.readouterr().out.splitlines()
    texts = [n for n, line in enumerate(lines) if not line.startswith("    ")]
    assert len(texts) == len(given)
    for n in texts[:3]:
        label, sure = lines[n].split(" sure: ")[0].split(", ")
        assert label in ("positive", "negative") and 50 <= float(sure.rstrip("%")) <= 100
    if name == "attention":
        words, bias, logit = (float(x.strip("=")) for x in lines[3].split() if x[0] in "+-0")
        assert logit == pytest.approx(words + bias, abs=0.011)
        assert (logit > 0) == lines[0].startswith("positive")
    else:
        assert "zyxxy (unknown) " in lines[1] and "superb " in lines[1]
    if name == "post":
        assert lines[3].strip() == "attended most: dull 100.0%"
    for n in texts[3:]:
        assert lines[n].startswith("no label: ")
        assert lines[n + 1] == "    it has no words that the model knows"


# As people type them; none of them is in the sample.
PRAISE = (
    "A wonderful movie.",
    "This film isn't bad at all, I enjoyed it.",
    "The music was nice and the story is gripping.",
    "One of the best comedies I have seen in my whole life.",
    "10/10, would watch again with my sister",
    "Go and see it, you will not regret it!",
    "Funny, smart and touching. Two thumbs up!",
    "Much better than I expected.",
)
BLAME = (
    "The acting was good, but the plot was a mess.",
    "What a waste of time, I fell asleep after ten minutes.",
    "It wasn't good.",
    "It was not good.",
    "Not funny, not interesting, just boring.",
    "I would not recommend it to anyone.",
    "1/10, I want my money back",
    "Terrible acting and a stupid plot.",
    "The worst sequel I have ever seen.",
)


@pytest.mark.slow
def test_what_the_sample_teaches(tmp_path, capsys):
    assert main(["--sample", "--output", tmp_path / "run"]) == 0
    capsys.readouterr()
    assert main(["predict", tmp_path / "run", *PRAISE, *BLAME]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.split(",")[0] for line in lines if not line.startswith(" ")]
    assert found == ["positive"] * len(PRAISE) + ["negative"] * len(BLAME)
    assert lines[1].startswith("    for positive: wonderful +")


# `--pretrained`: models of folders in Hugging Face's format

GIVEN = ["A superb plot.", "Dull, dull and dull! The villain is dull, and so is the hero.", "Bad"]
SETTINGS = settings_of("pretrained", max_length=16)


def classifier(folder, lora=None):
    model, tokenizer = texts.load_pretrained(folder, 16, "--max-length")
    settings = {**SETTINGS, "lora": lora}
    return imdb_models.build(settings, None, folder_model=model), tokenizer


def batch(tokenizer, given=GIVEN):
    return texts.pad(imdb_classification.encode(tokenizer, given, SETTINGS), 16)


def arrays(variables):
    return {v.path: np.array(keras.ops.convert_to_numpy(v)) for v in variables}


@pytest.mark.parametrize("lora", [None, 2], ids=["whole", "lora"])
def test_a_step_changes_only_what_is_to_be_trained(lora, gpt2):
    model, tokenizer = classifier(gpt2, lora)
    model.compile(training.fine_tuning(1e-2, 4), "binary_crossentropy")
    # A program takes longer than all else here, but on JAX one for each operation does.
    model.run_eagerly = keras.backend.backend() != "jax"
    before = arrays(model.variables)
    for _ in range(2):  # In the first step the gradient of A is 0, since B is.
        model.train_on_batch(batch(tokenizer), np.array([[1], [0], [0]]))
    after = arrays(model.variables)
    changed = {path for path in after if np.any(after[path] != before[path])}
    changed = {path for path in changed if "seed" not in path}
    trained = {variable.path for variable in model.trainable_variables}
    # The bias of a key moves all scores of a query alike.
    unmoved = {path for path in trained - changed if "attention/key/bias" not in path}
    assert changed <= trained and not unmoved
    if lora:
        others = {path for path in trained if "lora_kernel" not in path}
        assert others == {"probability/kernel", "probability/bias"}
        assert len(trained) == 2 * 2 + 2
    else:
        assert len(trained) == len([path for path in before if "seed" not in path])


def test_a_run_from_a_folder_trains_and_saves(gpt2, folder, tmp_path):
    common = ["--max-length", 16, "--batch-size", 16, "--epochs", 2, "--data-dir", folder]
    output = tmp_path / "run"
    said = ran(main, output, "--pretrained", gpt2, "--lora", 2, *common)
    assert said["settings"]["learning_rate"] == 5e-4
    # The adapters are in the kernels, whose number is that of the folder's model and the head.
    saved = keras.models.load_model(output / "model.keras")
    assert saved.count_params() == classifier(gpt2)[0].count_params()
    _, _, test = imdb_reviews.load(folder)
    found = saved.predict_on_batch(batch(texts.load_tokenizer(output), test.texts))[:, 0]
    accuracy = np.mean((found > 0.5) == test.labels)
    assert accuracy == pytest.approx(said["test_accuracy"], abs=1e-6)


def test_the_rate_of_a_whole_model(gpt2, tmp_path, monkeypatch):
    seen = []

    def stop(path, program, settings):
        seen.append(settings["learning_rate"])
        raise KeyboardInterrupt

    monkeypatch.setattr("examples.shared.Run", stop)
    for options in ((), ("--learning-rate", 0.1)):
        assert main(["--pretrained", gpt2, *options, "--output", tmp_path]) == 130
    assert seen == [2e-5, 0.1]


def test_texts_are_between_special_tokens_and_shortened_in_the_middle(gpt2):
    tokenizer = texts.load_tokenizer(gpt2)
    given = [" ".join(["word"] * 60), "Bad<br />plot", "Bad plot", ""]
    long, short, same, empty = imdb_classification.encode(tokenizer, given, SETTINGS)
    assert len(long) == 16 and len(short) < 16
    for numbers in (long, short):
        assert numbers[0] == 0 + 1 and numbers[-1] == 2 + 1
    np.testing.assert_array_equal(short, same)
    assert empty.tolist() == [1, 3]
