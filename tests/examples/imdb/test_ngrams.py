"""The n-gram numbers of the IMDB example, against Python's own counting."""

import collections
import dataclasses

import numpy as np
import pytest

from examples.imdb import ngrams as imdb_ngrams
from examples.imdb import recipes as imdb_recipes
from examples.imdb import text as imdb_text

TEXTS = ["a b a b c", "b a b", "c c c a b", "d a b c", "e"]


def ngrams(words, order):
    """The n-gram that ends at each word, where there is one."""
    return [
        tuple(words[i - order + 1 : i + 1]) if i >= order - 1 else None for i in range(len(words))
    ]


def encoder(min_reviews):
    recipe = dataclasses.replace(imdb_recipes.RECIPES["best"], min_reviews=min_reviews)
    return imdb_text.Encoder.learn(TEXTS, recipe, 100, 50)


@pytest.mark.parametrize("min_reviews", [1, 2, 9])
def test_numbers_are_those_of_frequent_ngrams(min_reviews):
    encode = encoder(min_reviews)
    seen = {}
    for text in TEXTS:
        numbers = encode(text)
        assert numbers.shape == (len(text.split()), 4)
        for order in (1, 2, 3):
            counts = collections.Counter(
                gram for other in TEXTS for gram in set(ngrams(other.split(), order))
            )
            said = set()
            for number, gram in zip(numbers[:, order], ngrams(text.split(), order), strict=True):
                if gram is None or counts[gram] < min_reviews or gram in said:
                    assert number == 0
                else:
                    assert encode.vocabulary_size <= number < encode.size
                    assert seen.setdefault(gram, number) == number
                said.add(gram)
    assert len(set(seen.values())) == len(seen) == encode.size - encode.vocabulary_size


def test_unknown_words_are_part_of_no_ngram():
    numbers = encoder(1)("a zyxxy b a b")
    assert (numbers[:, 0] == imdb_text.UNKNOWN).tolist() == [False, True, False, False, False]
    assert (numbers[:, 1:] > 0).tolist() == [
        [True, False, False],
        [False, False, False],
        [True, False, False],
        [False, True, False],
        [False, True, True],
    ]


def test_log_ratios():
    encode = encoder(1)
    rows = [encode(text) for text in TEXTS]
    ratios = imdb_ngrams.log_ratios(rows, [1, 1, 0, 0, 0], encode.size)
    number = encode("a b")[1, 2]
    # "a b" is in both of the two positive reviews, and in two of the three negative ones.
    assert ratios[number] == pytest.approx(np.log((2 + 1) / (2 + 2) / ((2 + 1) / (3 + 2))))
    assert ratios[0] == 0 and ratios.shape == (encode.size,)


def test_too_many_words_for_the_keys():
    with pytest.raises(ValueError, match="need a smaller vocabulary"):
        imdb_ngrams.learn([], 3, 2**21, 1)
