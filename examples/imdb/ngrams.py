"""N-grams of words as separate numbers, and how much more often each occurs in praise.

An n-gram is one integer, its key. Those of enough training reviews have numbers, which follow those
of the words. The others have 0. So has an n-gram that occurred earlier in the same review: as in
Wang & Manning 2012, it counts once.
"""

import numpy as np

# Keys are numbers of a few digits to the base of the vocabulary's size, in int64.
LARGEST_KEY = 2**63 - 1


def keys(words, order, vocabulary_size):
    """The key of the n-gram of `order` words that ends at each word, 0 where there is none.

    Args:
        words: numbers (T,), 0 for padding and 1 for unknown words, which are part of no n-gram.
        order: the number of words.
        vocabulary_size: one more than the largest number.
    """
    words = np.where(words > 1, words, 0).astype("int64")
    key, whole = words, words > 0
    for back in range(1, order):
        earlier = np.zeros_like(words)
        earlier[back:] = words[: max(len(words) - back, 0)]
        key = key * vocabulary_size + earlier
        whole = whole & (earlier > 0)
    return np.where(whole, key, 0)


def learn(rows, orders, vocabulary_size, min_reviews):
    """The keys of n-grams of 1 to `orders` words that at least `min_reviews` rows have.

    Returns:
        For each order an ascending array of keys.
    """
    if vocabulary_size**orders > LARGEST_KEY:
        raise ValueError(
            f"N-grams of {orders} words need a smaller vocabulary. Received: "
            f"vocabulary_size={vocabulary_size}"
        )
    learned = []
    for order in range(1, orders + 1):
        found = [np.unique(keys(row, order, vocabulary_size)) for row in rows]
        values, reviews = np.unique(np.concatenate(found), return_counts=True)
        learned.append(values[(reviews >= min_reviews) & (values > 0)])
    return learned


def numbers(words, learned, vocabulary_size):
    """For each order the number of the n-gram that ends at each word, and 0 where there is none."""
    found, first = [], vocabulary_size
    for order, known in enumerate(learned, start=1):
        key = keys(words, order, vocabulary_size)
        index = np.minimum(np.searchsorted(known, key), max(len(known) - 1, 0))
        is_known = known[index] == key if len(known) else np.zeros(len(key), bool)
        is_first = np.zeros(len(key), bool)
        is_first[np.unique(key, return_index=True)[1]] = True
        found.append(np.where(is_known & is_first, first + index, 0).astype("int32"))
        first += len(known)
    return found


def log_ratios(rows, labels, size):
    """How much more often positive reviews have each n-gram than negative ones, (size,), in log.

    The log-count ratio of Wang & Manning 2012 with one review of each kind added to the counts.

    Args:
        rows: for each review the numbers (T, 1 + orders), its words in the first column.
        labels: 1 for positive reviews, and 0.
        size: one more than the largest number.
    """
    labels = np.asarray(labels)
    counts = np.zeros((2, size))
    for row, label in zip(rows, labels, strict=True):
        # Each number occurs once in a row, but 0, which is no n-gram.
        counts[int(label), row[:, 1:].ravel()] += 1
    rates = (counts + 1) / (np.bincount(labels, minlength=2) + 2)[:, None]
    ratios = np.log(rates[1] / rates[0])
    ratios[0] = 0.0
    return ratios.astype("float32")
