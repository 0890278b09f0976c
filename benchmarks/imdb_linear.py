"""Accuracy of a linear model on IMDB: `python -m benchmarks.imdb_linear --data-dir aclImdb`.

Logistic regression on words, pairs and triples of words. Each counts once per review and is scaled
by its log-count ratio (Wang & Manning 2012). It has the reviews and n-grams of the example's model
`ngrams`, and no attention, so it is the mark for that model. It needs scikit-learn.
"""

import dataclasses
import pathlib
import re
import sys
import time

import numpy as np

from benchmarks import runner
from examples import imdb_classification as example
from examples import imdb_ngrams, imdb_reviews

SETTINGS = {"model": "ngrams", **example.RECIPES["ngrams"]}


def single_marks(reviews):
    """The reviews with each punctuation mark a token of its own, inside of words too."""
    spaced = [re.sub(r"([^\w\s])", r" \1 ", example.clean(text)) for text in reviews.texts]
    return dataclasses.replace(reviews, texts=spaced)


def numbered(sets, settings):
    """The rows of each set of reviews, how many words there are, and n-grams: of "train"."""
    tokenizer = example.learn_tokenizer(sets["train"].texts, "ngrams", settings["vocabulary_size"])
    words = tokenizer.get_vocab_size()
    rows = {n: example.encode(tokenizer, found.texts, settings) for n, found in sets.items()}
    learned = imdb_ngrams.learn(rows["train"], words)
    for name, found in rows.items():
        rows[name] = [imdb_ngrams.add_numbers(row, learned, words) for row in found]
    return rows, words, sum(map(len, learned.values()))


def measure(train, test, regularization, shares=False):
    """Rows of test accuracy for inverse strengths of regularization, with CPU time.

    Ratios are of shares of reviews, as in the example, or with `shares` of all n-grams, as in the
    paper. They differ by a constant.
    """
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    start = time.process_time()
    # Of all tokens of a review.
    sets, settings = {"train": train, "test": test}, {**SETTINGS, "max_length": 2**30}
    rows, _, ngrams = numbered(sets, settings)
    labels = train.labels
    ratios = imdb_ngrams.log_ratios(rows["train"], labels, 1 + ngrams)
    if shares:
        found = np.array([np.count_nonzero(row[:, 1:]) for row in rows["train"]])
        totals = np.bincount(labels, weights=found, minlength=2) + ngrams
        reviews = np.bincount(labels, minlength=2) + 2
        ratios += np.log(totals[0] / totals[1] * reviews[1] / reviews[0])

    def features(reviews):
        found = [row[:, 1:][row[:, 1:] > 0] for row in reviews]
        columns = np.concatenate(found)
        starts = np.cumsum([0, *map(len, found)])
        return sparse.csr_matrix((ratios[columns], columns, starts), (len(found), 1 + ngrams))

    inputs, unseen = features(rows["train"]), features(rows["test"])
    for strength in regularization:
        model = LogisticRegression(C=strength, solver="liblinear", dual=True, max_iter=1000)
        model.fit(inputs, labels)
        yield {
            "C": strength,
            "ngrams": ngrams,
            "test_accuracy": float(np.mean(model.predict(unseen) == test.labels)),
            "processor_seconds": round(time.process_time() - start, 1),
        }


# The option of where reviews come from.
SOURCE = {"--data-dir": {"type": pathlib.Path, "help": "an unpacked aclImdb folder"}}


def reviews(options):
    """What the reviews are, those for training and those for the test."""
    if not (options.data_dir or options.small):
        sys.exit("give --data-dir, an unpacked aclImdb folder, or --small")
    return imdb_reviews.load(options.data_dir, options.data_dir is None)


def main():
    flags = {
        "--single-marks": 'each punctuation mark is a token, also those of "don\'t" and "..."',
        "--shares": "log-count ratios of shares of all n-grams, not of reviews",
    }
    flags = {name: runner.flag(words) for name, words in flags.items()}
    options = runner.parsed(__doc__, SOURCE | flags)
    source, *sets = reviews(options)
    if options.single_marks:
        sets = map(single_marks, sets)
    rows = measure(*sets, (0.1, 1.0), options.shares)
    return runner.report(rows, options, reviews=source)


if __name__ == "__main__":
    main()
