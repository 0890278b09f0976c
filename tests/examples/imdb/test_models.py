"""From reviews to numbers, and the n-grams of the IMDB example."""

import collections

import numpy as np
import pytest

from examples import imdb_classification, imdb_ngrams
from examples.shared import UsageError
from keras_attention.visualization import collect_attention
from tests.examples.imdb.runs import TEXTS, settings_of, small_model, tokenizer_of


def tokens(text, name):
    tokenizer = tokenizer_of(name, [text] * 2, 1000)
    return tokenizer.encode(imdb_classification.clean(text)).tokens


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
    assert tokens(text, "post") == words.split()
    assert tokens(text, "ngrams") == with_punctuation.split()


def test_words_are_numbered_by_frequency():
    tokenizer = tokenizer_of("post", ["the the the film film is"] * 2, 4)
    rows = imdb_classification.encode(tokenizer, ["The film is!", "", "?!"], settings_of("post"))
    assert [row.tolist() for row in rows] == [[2, 3, 1], [1], [1]]
    assert tokenizer_of("ngrams", ["a b b", "a c"]).encode("a b c").ids == [2, 3, 1]


@pytest.mark.parametrize("name", ["post", "transformer"])
@pytest.mark.parametrize("most", [1, 4, 5])
@pytest.mark.parametrize("length", [1, 4, 5, 6, 11])
def test_windows(name, most, length):
    words = [f"w{i}" for i in range(length)]
    head = 0 if name == "post" else most // 2
    expected = [w for i, w in enumerate(words) if i < head or length - i <= most - head]
    kept = imdb_classification.kept(words, settings_of(name, max_length=most))
    assert kept == (words if length <= most else expected)


def weights(model, numbers):
    scores = collect_attention(model, numbers)
    (found,) = (array for name, array in scores.items() if name.startswith("attention"))
    found = np.asarray(found[0], "float32").sum((0, 1))
    return found / found.sum()


# N-grams, against Python's own counting

WORDS = ["a b a b c", "b a b", "c c c a b", "d a b c", "e"]


def ngrams(words, order):
    """The n-gram that ends at each word, where there is one."""
    return [
        tuple(words[i - order + 1 : i + 1]) if i >= order - 1 else None for i in range(len(words))
    ]


@pytest.fixture
def numbered(monkeypatch):
    """Of WORDS: a function from the least number of reviews to rows, and what was learned."""

    def make(least):
        monkeypatch.setattr(imdb_ngrams, "MIN_REVIEWS", least)
        tokenizer = tokenizer_of("post", WORDS)
        rows = [np.array(tokenizer.encode(text).ids, "int32") for text in WORDS]
        size = tokenizer.get_vocab_size()
        learned = imdb_ngrams.learn(rows, size)
        return [imdb_ngrams.add_numbers(row, learned, size) for row in rows], learned, size

    return make


@pytest.mark.parametrize("least", [1, 2, 9])
def test_numbers_are_those_of_frequent_ngrams(numbered, least):
    rows, learned, _ = numbered(least)
    seen = {}
    for text, numbers in zip(WORDS, rows, strict=True):
        assert numbers.shape == (len(text.split()), 4)
        for order in (1, 2, 3):
            counts = collections.Counter(
                gram for other in WORDS for gram in set(ngrams(other.split(), order))
            )
            said = set()
            for number, gram in zip(numbers[:, order], ngrams(text.split(), order), strict=True):
                if gram is None or counts[gram] < least or gram in said:
                    assert number == 0
                else:
                    assert 1 <= number <= sum(map(len, learned.values()))
                    assert seen.setdefault(gram, number) == number
                said.add(gram)
    assert len(set(seen.values())) == len(seen) == sum(map(len, learned.values()))


def test_unknown_words_are_part_of_no_ngram(numbered):
    _, learned, size = numbered(1)
    a, b = tokenizer_of("post", WORDS).encode("a b").ids
    numbers = imdb_ngrams.add_numbers(np.array([a, 1, b, a, b]), learned, size)
    assert (numbers[:, 1:] > 0).tolist() == [
        [True, False, False],
        [False, False, False],
        [True, False, False],
        [False, True, False],
        [False, True, True],
    ]


def test_log_ratios(numbered):
    rows, learned, _ = numbered(1)
    total = 1 + sum(map(len, learned.values()))
    ratios = imdb_ngrams.log_ratios(rows, [1, 1, 0, 0, 0], total)
    number = rows[0][1, 2]  # "a b"
    # It is in both of the two positive reviews, and in two of the three negative ones.
    assert ratios[number] == pytest.approx(np.log((2 + 1) / (2 + 2) / ((2 + 1) / (3 + 2))))
    assert ratios[0] == 0 and ratios.shape == (total,)


@pytest.mark.parametrize("name", imdb_classification.NGRAMS)
def test_ratios_are_those_of_the_training_rows(numbered, name):
    rows, learned, size = numbered(1)
    total, labels = 1 + sum(map(len, learned.values())), [1, 1, 0, 0, 0]
    model = imdb_classification.build(settings_of(name), size, total)
    imdb_ngrams.set_ratios(model, rows, labels)
    (table,) = model.get_layer("log_ratio").get_weights()
    np.testing.assert_array_equal(table[:, 0], imdb_ngrams.log_ratios(rows, labels, total))
    assert not np.any(model.get_layer("weight").get_weights())


def test_the_transformer_adds_the_evidence_of_ngrams():
    model, row_of = small_model("transformer")
    numbers, logits = row_of(TEXTS[2])[None], []
    ratio, weight = (model.get_layer(name).get_weights()[0] for name in ("log_ratio", "weight"))
    evidence = (weight * ratio)[numbers[0, :, 1:], 0].sum(axis=1)
    for change in (1, 0):
        model.get_layer("weight").set_weights([change * weight])
        probability = model.predict_on_batch(numbers)[0, 0]
        logits.append(np.log(probability / (1 - probability)))
    expected = 32 * np.sqrt(len(evidence)) * weights(model, numbers) @ evidence
    assert logits[0] - logits[1] == pytest.approx(expected, rel=1e-4)
    assert abs(expected) > 0.01


def test_ngrams_weigh_all_words_alike_at_first():
    model = imdb_ngrams.build(50, 60)
    np.testing.assert_allclose(weights(model, np.full((1, 5, 4), 3)), 1 / 5, rtol=1e-5)


def test_too_many_words_for_the_keys():
    with pytest.raises(UsageError, match="need a smaller --vocabulary-size"):
        imdb_ngrams.learn([], 2**21)
