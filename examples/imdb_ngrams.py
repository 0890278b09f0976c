"""The model `ngrams` of `imdb_classification`: a linear model of n-grams, weighed by attention.

An n-gram is one integer, its key. Those of enough training reviews have numbers, which follow those
of the words. The others have 0. So has an n-gram that occurred earlier in the same review: as in
Wang & Manning 2012, it counts once.
"""

import zipfile
import zlib
from pathlib import Path

import keras
import numpy as np

from examples.shared import UsageError, one_line
from keras_attention import Attention

ops = keras.ops

ORDERS, MIN_REVIEWS = 3, 2  # of words in the longest n-grams; that must have an n-gram
FILE = "ngrams.npz"


def keys(words, order, size):
    """The key of the n-gram of `order` words that ends at each word, 0 where there is none.

    Keys are words' numbers (T,) as digits to the base of the vocabulary's `size`, in int64. 0 is
    padding and 1 an unknown word, which are part of no n-gram.
    """
    words = np.where(words > 1, words, 0).astype("int64")
    key, whole = words, words > 0
    for back in range(1, order):
        earlier = np.zeros_like(words)
        earlier[back:] = words[: max(len(words) - back, 0)]
        key = key * size + earlier
        whole = whole & (earlier > 0)
    return np.where(whole, key, 0)


def learn(rows, size):
    """For each order the ascending keys of the n-grams that enough rows have."""
    if size**ORDERS >= 2**63:
        raise ValueError(f"The keys of n-grams need a smaller vocabulary. Received: size={size}")
    learned = []
    for order in range(1, ORDERS + 1):
        found = np.concatenate([np.unique(keys(row, order, size)) for row in rows])
        values, reviews = np.unique(found, return_counts=True)
        learned.append(values[(reviews >= MIN_REVIEWS) & (values > 0)])
    return learned


def add_numbers(words, learned, size):
    """Words' numbers (T,), and for each order that of the n-gram ending there: (T, 1 + orders)."""
    columns, first = [words], size
    for order, known in enumerate(learned, start=1):
        key = keys(words, order, size)
        index = np.minimum(np.searchsorted(known, key), max(len(known) - 1, 0))
        is_known = known[index] == key if len(known) else np.zeros(len(key), bool)
        is_first = np.zeros(len(key), bool)
        is_first[np.unique(key, return_index=True)[1]] = True
        columns.append(np.where(is_known & is_first, first + index, 0))
        first += len(known)
    return np.stack(columns, axis=-1).astype("int32")


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


def build(size, ratios, attend=True):
    """A classifier of numbers (B, T, 1 + orders), up to `size`, whose n-grams have such ratios.

    The evidence of an n-gram is a learned weight times its log-count ratio, as in a linear model of
    Naive-Bayes features. There all words of a review count the same. Here each has an attention
    score: a learned number of the word plus one of its position. With `attend` false all have the
    same weight, to see what attention is worth.
    """

    def table(name, **options):
        return keras.layers.Embedding(size, 1, dtype="float32", name=name, **options)

    ids = keras.Input((None, 1 + ORDERS), dtype="int32", name="ids")
    words, ngrams = ids[..., 0], ids[..., 1:]
    # The mask is handed over as an argument: Keras's operations on tensors drop those they carry.
    mask = ops.not_equal(words, 0)
    ratio = table("log_ratio", trainable=False)
    weight = table("weight", embeddings_initializer="zeros")
    evidence = ops.sum(ops.multiply(weight(ngrams), ratio(ngrams)), axis=2)
    ratio.set_weights([ratios[:, None]])
    score = ops.zeros_like(evidence)
    if attend:
        options = {"dtype": "float32", "name": "position_score", "kernel_initializer": "zeros"}
        of_position = keras.layers.Dense(1, use_bias=False, **options)
        score = table("word_score", embeddings_initializer="zeros")(words)
        score = ops.add(score, of_position(positions(mask)))
    # The keys are scores already, which a query of 1 leaves as they are.
    attended = Attention(score="dot", dtype="float32", name="attention")(
        [ops.ones_like(score[:, :1]), evidence, score], value_mask=mask
    )
    # The mean underrates a long review, and the sum overrates it. This is between them, and equals
    # the sum at 256 words.
    length = ops.sum(ops.cast(mask, "float32"), axis=1, keepdims=True)
    total = ops.multiply(attended[:, 0], 16 * ops.sqrt(length))
    output = keras.layers.Activation("sigmoid", dtype="float32", name="probability")(total)
    return keras.Model(ids, output, name="classifier")


def prepare(run, rows, labels, size, steps):
    """The classifier, its optimizer, and all rows with the n-grams of the training rows."""
    learned = learn(rows["train"], size)
    run.write(FILE, lambda path: save(path, learned))
    rows = {
        name: [add_numbers(row, learned, size) for row in found] for name, found in rows.items()
    }
    size += sum(map(len, learned))
    return build(size, log_ratios(rows["train"], labels, size)), optimizer(steps), rows


def optimizer(steps):
    """Not Adam, which moves rare n-grams as far as frequent ones: all occurrences count."""
    return keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(2.0, steps, 0.02))


def save(path, learned):
    """Writes what `learn` found to a file."""
    with open(path, "wb") as file:
        np.savez_compressed(file, *learned)


def load(folder):
    """Reads it again."""
    path = Path(folder) / FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[name] for name in file.files]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"{path} is missing or damaged: {one_line(error)}") from None


def positions(mask):
    """Six features of each position, (B, T, 6): how near it is to either end, at three scales."""
    count = ops.cumsum(ops.cast(mask, "float32"), axis=1)
    distances = (count - 1, count[:, -1:] - count)
    near = [ops.exp(-distance / scale) for scale in (10, 40, 160) for distance in distances]
    return 0.3 * ops.stack(near, axis=-1)
