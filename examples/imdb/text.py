"""From raw reviews to the numbers that a model reads, in plain Python and NumPy.

0 is padding, 1 a word outside the vocabulary, and then come the words by frequency and the n-grams.
What was learned is saved in a separate file, without pickled objects: any backend can read it.
"""

import collections
import re
import zipfile
import zlib

import numpy as np

from examples.errors import UsageError
from examples.imdb.ngrams import learn as learn_ngrams
from examples.imdb.ngrams import numbers as numbers_of_ngrams

PADDING, UNKNOWN = 0, 1
FIRST_WORD = 2

# The file of an `Encoder`.
FILE = "text.npz"

# What training and prediction pad to, so that there are few shapes to compile programs for.
LENGTH_MULTIPLE = 128

_WORD = r"\w+(?:['’]\w+)*"
_WORDS = re.compile(_WORD)
_WORDS_AND_PUNCTUATION = re.compile(rf"{_WORD}|[.!?]+|[^\w\s]")


def tokens(text, punctuation=False):
    """The words of `text` in lower case, and with `punctuation` what is between them."""
    pattern = _WORDS_AND_PUNCTUATION if punctuation else _WORDS
    return pattern.findall(text.replace("<br />", " ").lower())


def is_word(token):
    """Whether a token is a word: it has a letter or a digit."""
    return any(map(str.isalnum, token))


def kept(tokens, max_length, window):
    """At most `max_length` of the tokens of a text: the "last", or those at "both_ends"."""
    if len(tokens) <= max_length:
        return tokens
    first = max_length // 2 if window == "both_ends" else 0
    return tokens[:first] + tokens[len(tokens) - (max_length - first) :]


class Encoder:
    """From texts to numbers.

    Args:
        words: the vocabulary; its first word has the number `FIRST_WORD`.
        max_length: the number of tokens of a text that are kept.
        window: which tokens of a longer text are kept: "last" or "both_ends".
        punctuation: whether punctuation marks are tokens.
        ngrams: None, or a list of the keys of n-grams of 1, 2, … tokens (see `ngrams.py`). Then
            each token has one number more for each of these orders.
    """

    file = FILE

    def __init__(self, words, max_length, window, punctuation=False, ngrams=None):
        self.words = list(words)
        self.max_length = max_length
        self.window = window
        self.punctuation = punctuation
        self.ngrams = ngrams
        self._numbers = {word: number for number, word in enumerate(self.words, FIRST_WORD)}

    @classmethod
    def learn(cls, texts, recipe, vocabulary_size, max_length):
        """An encoder of the most frequent tokens and n-grams of `texts`, as `recipe` has them."""
        counts, reviews = collections.Counter(), collections.Counter()
        for text in texts:
            found = tokens(text, recipe.punctuation)
            counts.update(found)
            reviews.update(set(found))
        frequent = [
            word for word, _ in counts.most_common() if reviews[word] >= recipe.min_reviews
        ][: vocabulary_size - FIRST_WORD]
        encoder = cls(frequent, max_length, recipe.window, recipe.punctuation)
        if recipe.ngrams:
            rows = [encoder.numbers(encoder.tokens(text)) for text in texts]
            encoder.ngrams = learn_ngrams(
                rows, recipe.ngrams, encoder.vocabulary_size, recipe.min_reviews
            )
        return encoder

    @property
    def vocabulary_size(self):
        """One more than the largest number of a word."""
        return FIRST_WORD + len(self.words)

    @property
    def size(self):
        """One more than the largest number."""
        return self.vocabulary_size + sum(map(len, self.ngrams or ()))

    def tokens(self, text):
        """The tokens of `text` that the model reads."""
        return kept(tokens(text, self.punctuation), self.max_length, self.window)

    def numbers(self, words):
        """The number of each of the tokens. A text without any is one unknown word."""
        numbers = [self._numbers.get(word, UNKNOWN) for word in words] or [UNKNOWN]
        return np.array(numbers, "int32")

    def __call__(self, text):
        """The numbers of a text, (T,), or with n-grams (T, 1 + orders)."""
        numbers = self.numbers(self.tokens(text))
        if not self.ngrams:
            return numbers
        ngrams = numbers_of_ngrams(numbers, self.ngrams, self.vocabulary_size)
        return np.stack([numbers, *ngrams], axis=-1)

    def save(self, path):
        """Writes a file that `load` reads."""
        # Tokens contain no white space, so one string has them all, one per line.
        words = np.frombuffer("\n".join(self.words).encode("utf-8"), "uint8")
        settings = np.array([self.max_length, self.window == "both_ends", self.punctuation])
        ngrams = {f"ngrams_{i}": keys for i, keys in enumerate(self.ngrams or ())}
        with open(path, "wb") as file:
            np.savez_compressed(file, words=words, settings=settings, **ngrams)

    @classmethod
    def load(cls, path):
        """The encoder in a file.

        Raises:
            UsageError: the file is missing, or `save` did not write it as it is.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                words = file["words"].tobytes().decode("utf-8").split("\n")
                max_length, both_ends, punctuation = file["settings"].tolist()
                ngrams = [file[f"ngrams_{i}"] for i in range(len(file.files) - 2)]
        except FileNotFoundError:
            raise UsageError(
                f"{path} is missing. A run has it beside its model since version 0.2: train again "
                "with another --output."
            ) from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from None
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from None
        window = "both_ends" if both_ends else "last"
        return cls([word for word in words if word], max_length, window, bool(punctuation), ngrams)


def pad(rows, length=None):
    """Rows of numbers as one array, padded at the end to `length`, by default to the longest."""
    length = max(map(len, rows)) if length is None else length
    padded = np.full((len(rows), length, *rows[0].shape[1:]), PADDING, "int32")
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def padded_length(length, max_length):
    """The length that a row of `length` numbers, at most `max_length`, is padded to."""
    return min(-(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, max_length)
