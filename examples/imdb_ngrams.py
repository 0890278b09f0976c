"""N-grams of words for `imdb_classification`, and its linear model of them, weighed by attention.

An n-gram is one integer, its key. Those of enough training reviews have numbers from 1 on. The
others have 0.
"""

from pathlib import Path

import keras
import numpy as np

from examples.shared import UsageError, one_line
from keras_attention import Attention

ops = keras.ops

ORDERS = 1, 2, 3
MIN_REVIEWS = 2
FILE = "ngrams.npz"


def keys(words, order, size):
    """The key of the n-gram of `order` words that ends at each word, 0 where there is none.

    Keys are words' numbers (T,) as digits to the base of the vocabulary's `size`, in int64. 0 is
    padding and 1 an unknown word, which are part of no n-gram.
    """
    words = np.pad(np.where(words > 1, words, 0).astype("int64"), (order - 1, 0))
    ngrams = np.lib.stride_tricks.sliding_window_view(words, order)
    return np.where((ngrams > 0).all(axis=1), ngrams @ size ** np.arange(order), 0)


def frequent(rows, order, size):
    """The ascending keys of the n-grams that enough rows have."""
    found = np.concatenate([np.unique(keys(row, order, size)) for row in rows])
    values, reviews = np.unique(found, return_counts=True)
    return values[(reviews >= MIN_REVIEWS) & (values > 0)]


def learn(rows, size):
    """For each order its `frequent` n-grams."""
    if size ** max(ORDERS) >= 2**63:
        raise UsageError(f"N-grams need a smaller --vocabulary-size than {size:,}.")
    return {order: frequent(rows, order, size) for order in ORDERS}


def add_numbers(words, learned, size):
    """Words' numbers (T,), and for each order that of the n-gram ending there: (T, 1 + orders).

    An n-gram that occurred earlier in the same review has the number 0: it counts once, as in
    Wang & Manning 2012.
    """
    columns, first = [words], 1
    for order, known in learned.items():
        key = keys(words, order, size)
        index = np.minimum(np.searchsorted(known, key), max(len(known) - 1, 0))
        is_known = known[index] == key if len(known) else np.zeros(len(key), bool)
        counts = np.zeros(len(key), bool)
        counts[np.unique(key, return_index=True)[1]] = True
        columns.append(np.where(is_known & counts, first + index, 0))
        first += len(known)
    return np.stack(columns, axis=-1).astype("int32")


def number(run, rows, size):
    """Adds n-grams to each set of rows. Returns the sets, and one more than the largest number."""
    learned = learn(rows["train"], size)
    named = {str(order): known for order, known in learned.items()}
    run.write(FILE, lambda path: np.savez_compressed(path, **named))
    rows = {n: [add_numbers(row, learned, size) for row in found] for n, found in rows.items()}
    return rows, 1 + sum(map(len, learned.values()))


def log_ratios(rows, labels, size):
    """How much more often positive reviews have each n-gram than negative ones, (size,), in log."""
    counts = np.zeros((2, size))
    for row, label in zip(rows, labels, strict=True):
        # Each number occurs once in a row, but 0, which is no n-gram.
        counts[int(label), row[:, 1:].ravel()] += 1
    rates = (counts + 1) / (np.bincount(labels, minlength=2) + 2)[:, None]
    ratios = np.log(rates[1] / rates[0])
    ratios[0] = 0.0
    return ratios.astype("float32")


def set_ratios(model, rows, labels):
    """Gives a model with `evidence` the log-count ratios of the training rows."""
    ratio = model.get_layer("log_ratio")
    ratio.set_weights([log_ratios(rows, labels, ratio.input_dim)[:, None]])


def table(name, size, **options):
    """A learned number of each of so many words or n-grams."""
    return keras.layers.Embedding(size, 1, dtype="float32", name=name, **options)


def evidence(grams, ngrams):
    """The evidence (B, T, 1) of n-grams, numbers (B, T, 3) below `ngrams`.

    That of one is a learned weight, at first 0, times its log-count ratio, as in a linear model of
    Naive-Bayes features.
    """
    ratio = table("log_ratio", ngrams, trainable=False)
    weight = table("weight", ngrams, embeddings_initializer="zeros")
    return ops.sum(ops.multiply(weight(grams), ratio(grams)), axis=2)


def total(mean, mask):
    """From the mean evidence of a review (B, 1) to its logit.

    The mean underrates a long review, and the sum overrates it. This is between them, and equals
    the sum at 256 words.
    """
    length = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)
    return ops.multiply(mean, 16 * ops.sqrt(length))


def build(size, ngrams):
    """A linear classifier of numbers (B, T, 4), of words below `size` and n-grams below `ngrams`.

    In a linear model all words of a review count the same. Here each has an attention score: a
    learned number of the word plus one of its position.
    """
    ids = keras.Input((None, 4), dtype="int32", name="ids")
    words = ids[..., 0]
    # The mask is handed over as an argument: Keras's operations on tensors drop those they carry.
    mask = ops.not_equal(words, 0)
    options = {"dtype": "float32", "name": "position_score", "kernel_initializer": "zeros"}
    of_position = keras.layers.Dense(1, use_bias=False, **options)
    score = table("word_score", size, embeddings_initializer="zeros")(words)
    score = ops.add(score, of_position(positions(mask)))
    # The keys are scores already, which a query of 1 leaves as they are.
    attended = Attention(score="dot", dtype="float32", name="attention")(
        [ops.ones_like(score[:, :1]), evidence(ids[..., 1:], ngrams), score], value_mask=mask
    )
    logit = total(attended[:, 0], mask)
    output = keras.layers.Activation("sigmoid", dtype="float32", name="probability")(logit)
    return keras.Model(ids, output, name="classifier")


def optimizer(steps):
    """Not Adam, which moves rare n-grams as far as frequent ones: all occurrences count."""
    return keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(2.0, steps, 0.02))


def load(folder):
    """What `learn` found, of a run."""
    path = Path(folder) / FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            return {int(order): file[order] for order in file.files}
    except Exception as error:  # NumPy has no class of its own for damaged files.
        raise UsageError(f"{path} is missing or damaged: {one_line(error)}") from None


def positions(mask):
    """Six features of each position, (B, T, 6): how near it is to either end, at three scales."""
    count = ops.cumsum(ops.cast(mask, "float32"), axis=1)
    distances = (count - 1, count[:, -1:] - count)
    near = [ops.exp(-distance / scale) for scale in (10, 40, 160) for distance in distances]
    return 0.3 * ops.stack(near, axis=-1)
