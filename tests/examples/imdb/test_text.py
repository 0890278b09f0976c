"""From reviews to numbers: words, windows, files, padding."""

import numpy as np
import pytest

from examples.imdb import text as imdb_text
from tests.examples.imdb.runs import encoder


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
