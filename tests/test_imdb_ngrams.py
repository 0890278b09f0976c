"""The n-gram numbers of the IMDB example, against Python's own counting."""

import collections

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("the example needs Keras on TensorFlow", allow_module_level=True)

from examples import imdb_ngrams, imdb_text

TEXTS = ["a b a b c", "b a b", "c c c a b", "d a b c", ""]


def ngrams(words, order):
    return [tuple(words[max(0, i - order + 1) : i + 1]) for i in range(len(words))]


@pytest.mark.parametrize("min_reviews", [1, 2, 9])
def test_numbers_are_those_of_frequent_ngrams(min_reviews):
    vectorizer = imdb_text.learn_vocabulary(TEXTS, 20)
    words = imdb_text.vocabulary_size(vectorizer)
    plain = imdb_text.build_preprocessor(vectorizer, imdb_text.both_ends, 6)
    ids = imdb_text.encode(plain, TEXTS)
    model, sizes = imdb_ngrams.extend(plain, ids, (2, 3), words, min_reviews)
    numbers = imdb_text.encode(model, TEXTS)
    assert numbers.shape == (len(TEXTS), 6, 3)
    np.testing.assert_array_equal(numbers[..., 0], ids)
    assert sizes[0] == words

    for column, order in ((1, 2), (2, 3)):
        counts = collections.Counter(
            gram for text in TEXTS for gram in set(ngrams(text.split(), order))
        )
        frequent = {g for g, n in counts.items() if n >= min_reviews and len(g) == order}
        seen = {}
        for row, text in zip(numbers[..., column], TEXTS, strict=True):
            grams = ngrams(text.split(), order)
            for number, gram in zip(row, grams, strict=False):
                if gram in frequent:
                    assert 0 < number < sizes[column]
                    assert seen.setdefault(gram, number) == number
                else:
                    assert number == 0
            assert not row[len(grams) :].any()
        assert len(set(seen.values())) == len(frequent)


def test_saved_preprocessor_gives_the_same_numbers(tmp_path):
    vectorizer = imdb_text.learn_vocabulary(TEXTS, 20)
    plain = imdb_text.build_preprocessor(vectorizer, imdb_text.both_ends, 6)
    words = imdb_text.vocabulary_size(vectorizer)
    model, _ = imdb_ngrams.extend(plain, imdb_text.encode(plain, TEXTS), (2,), words, 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(imdb_text.encode(loaded, TEXTS), imdb_text.encode(model, TEXTS))


def test_too_many_words_for_the_keys():
    with pytest.raises(ValueError, match="At most"):
        imdb_ngrams.extend(None, None, (2,), imdb_ngrams.LARGEST_VOCABULARY + 1, 1)
