"""From raw reviews to word numbers, by layers that are saved with the model.

Word numbers are those of `keras.datasets.imdb`: 0 is padding, 1 the start of a review, 2 a word
outside the vocabulary, and then the words by frequency. Only stock Keras layers and operations are
used, so that the saved model needs no code of this example.
"""

import collections
import string

import keras
import numpy as np

ops = keras.ops

PADDING, START, UNKNOWN = 0, 1, 2
FIRST_WORD = 3

_PUNCTUATION = string.punctuation.encode("ascii")


def words(text):
    """The words of `text` as `TextVectorization` sees them; it does not give them away itself."""
    # Bytes, because TensorFlow lower-cases and splits at ASCII only, where `str` knows all scripts.
    stripped = text.encode("utf-8").lower().translate(None, _PUNCTUATION)
    return [word.decode("utf-8") for word in stripped.split()]


def learn_vocabulary(texts, size):
    """A vectorizer of the most frequent words of `texts`, for word numbers below `size`."""
    counts = collections.Counter()
    for text in texts:
        counts.update(words(text))
    frequent = [word for word, _ in counts.most_common(size - FIRST_WORD)]
    # Not `adapt`: what that learns is saved as lines of a text file, and some reviews have words
    # with U+0085, which ends a line. A vocabulary that was given is saved as JSON.
    return keras.layers.TextVectorization(vocabulary=frequent, name="words")


def vocabulary_size(vectorizer):
    """One more than the largest word number."""
    # The vectorizer knows of padding and unknown words, but not of starts.
    return vectorizer.vocabulary_size() + 1


def build_preprocessor(vectorizer, window, max_length):
    """The model from strings (B,) to the numbers (B, max_length) of the words `window` keeps."""
    text = keras.Input(shape=(), dtype="string", name="text")
    ids = ops.cast(vectorizer(text), "int32")
    is_word = ops.cast(ops.not_equal(ids, PADDING), "int32")
    length = ops.sum(is_word, axis=1, keepdims=True)
    return keras.Model(text, window(ids + is_word, length, max_length), name="preprocessor")


def longest(texts, limit):
    """The number of words in the longest of `texts`, or `limit` if that is less."""
    length = 1
    for text in texts:
        length = max(length, len(words(text)))
        if length >= limit:
            return limit
    return length


def encode(preprocessor, texts):
    """Word numbers of `texts`, a NumPy array (len(texts), max_length)."""
    return preprocessor.predict(np.array(texts, dtype=object), batch_size=256, verbose=0)


# Windows: ids (B, L), padded at the end, and lengths (B, 1), to (B, max_length).


def last_words(ids, length, max_length):
    """Start, then the words; cut and padded at the front, as `pad_sequences` does."""
    ids = ops.pad(ids, ((0, 0), (1, 0)), constant_values=START)
    ids = ops.pad(ids, ((0, 0), (max_length - 1, 0)), constant_values=PADDING)
    return ops.take_along_axis(ids, length + np.arange(max_length, dtype="int32"), axis=1)


def both_ends(ids, length, max_length):
    """The first and the last half of `max_length` words; padded at the end."""
    ids = ops.pad(ids, ((0, 0), (0, max_length)), constant_values=PADDING)
    place = np.arange(max_length, dtype="int32")
    skipped = ops.maximum(length - max_length, 0)
    in_last_half = (place >= max_length // 2).astype("int32")
    return ops.take_along_axis(ids, skipped * in_last_half + place, axis=1)
