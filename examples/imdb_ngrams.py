"""Pairs and triples of words as numbers of their own, by layers that are saved with the model.

An n-gram that ends at a word is one integer, its key. Those of enough training reviews are numbered
from 1 on; all others, and those that reach into the padding, are 0.
"""

import keras
import numpy as np

from examples import imdb_text

ops = keras.ops

# Keys are base-`words` numbers in int64: three digits of up to 2^20 words fit.
LARGEST_VOCABULARY = 2**20


def keys(ids, order, words):
    """The keys (B, T) of the n-grams of `order` words that end at each place; 0 at none."""
    ids = ops.cast(ids, "int64")
    key, whole = ids, ops.not_equal(ids, imdb_text.PADDING)
    for back in range(1, order):
        earlier = ops.pad(ids[:, :-back], ((0, 0), (back, 0)), constant_values=imdb_text.PADDING)
        key = key * words + earlier
        whole = ops.logical_and(whole, ops.not_equal(earlier, imdb_text.PADDING))
    return key * ops.cast(whole, "int64")


def learn(ids, order, words, min_reviews):
    """The keys, in ascending order, that occur in at least `min_reviews` rows of `ids`."""
    found = [
        np.unique(row)
        for start in range(0, len(ids), 1024)
        for row in ops.convert_to_numpy(keys(ids[start : start + 1024], order, words))
    ]
    values, reviews = np.unique(np.concatenate(found), return_counts=True)
    return values[(reviews >= min_reviews) & (values > 0)]


def extend(preprocessor, ids, orders, words, min_reviews):
    """A preprocessor that gives n-gram numbers beside word numbers, and how many of each there are.

    Args:
        preprocessor: the model from strings to word numbers (B, T).
        ids: what it gives for the training reviews.
        orders: the lengths of n-grams, such as (2, 3).
        words: one more than the largest word number.
        min_reviews: how many training reviews an n-gram must occur in to have a number.

    Returns:
        The model from strings to (B, T, 1 + len(orders)), and the sizes [words, pairs + 1, …].
    """
    if words > LARGEST_VOCABULARY:
        raise ValueError(f"At most {LARGEST_VOCABULARY} words have n-gram keys. Received: {words}")
    columns, sizes = [preprocessor.output], [words]
    for order in orders:
        known = learn(ids, order, words, min_reviews)
        # The lookup wants at least one. No n-gram has a negative key, and -1 is the unknown one.
        known = known if len(known) else np.array([-2], "int64")
        lookup = keras.layers.IntegerLookup(
            vocabulary=known.tolist(), mask_token=None, name=f"{order}_grams"
        )
        columns.append(ops.cast(lookup(keys(preprocessor.output, order, words)), "int32"))
        sizes.append(1 + len(known))
    return keras.Model(preprocessor.input, ops.stack(columns, axis=-1), name="preprocessor"), sizes
