"""Accuracy of a linear model on IMDB: `python -m benchmarks.imdb_linear --data-dir aclImdb`.

Logistic regression on words, pairs and triples of words. Each counts once per review and is scaled
by its log-count ratio (Wang & Manning 2012). It has the reviews and n-grams of the example's model
`ngrams`, and no attention, so it is the mark for that model. It needs scikit-learn.
"""

import argparse
import dataclasses
import pathlib
import re
import time

import numpy as np

from examples import imdb_classification as example
from examples import imdb_ngrams, imdb_reviews


def single_marks(reviews):
    """The reviews with each punctuation mark a token of its own, inside of words too."""
    spaced = [re.sub(r"([^\w\s])", r" \1 ", example.clean(text)) for text in reviews.texts]
    return dataclasses.replace(reviews, texts=spaced)


def measure(train, test, regularization, shares=False):
    """Test accuracy for inverse strengths of regularization, with CPU time.

    Ratios are of shares of reviews, as in the example, or with `shares` of all n-grams, as in the
    paper. They differ by a constant.
    """
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    start = time.process_time()
    # Of all tokens of a review.
    settings = {"model": "ngrams", **example.RECIPES["ngrams"], "max_length": 2**30}
    tokenizer = example.learn_tokenizer(train.texts, "ngrams", settings["vocabulary_size"])
    words = tokenizer.get_vocab_size()
    rows = {
        name: example.encode(tokenizer, found.texts, settings)
        for name, found in (("train", train), ("test", test))
    }
    learned = imdb_ngrams.learn(rows["train"], words)
    rows = {
        name: [imdb_ngrams.add_numbers(row, learned, words) for row in found]
        for name, found in rows.items()
    }
    labels = train.labels
    ngrams = sum(map(len, learned.values()))
    size = 1 + ngrams
    ratios = imdb_ngrams.log_ratios(rows["train"], labels, size)
    if shares:
        found = np.array([np.count_nonzero(row[:, 1:]) for row in rows["train"]])
        totals = np.bincount(labels, weights=found, minlength=2) + ngrams
        reviews = np.bincount(labels, minlength=2) + 2
        ratios += np.log(totals[0] / totals[1] * reviews[1] / reviews[0])

    def features(reviews):
        found = [row[:, 1:][row[:, 1:] > 0] for row in reviews]
        columns = np.concatenate(found)
        starts = np.cumsum([0, *map(len, found)])
        return sparse.csr_matrix((ratios[columns], columns, starts), (len(found), size))

    inputs, unseen = features(rows["train"]), features(rows["test"])
    accuracies = {}
    for strength in regularization:
        model = LogisticRegression(C=strength, solver="liblinear", dual=True, max_iter=1000)
        model.fit(inputs, labels)
        accuracies[strength] = float(np.mean(model.predict(unseen) == test.labels))
    return {
        "ngrams": ngrams,
        "test_accuracy": accuracies,
        "processor_seconds": round(time.process_time() - start, 1),
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data-dir", type=pathlib.Path, help="an unpacked aclImdb folder")
    source.add_argument("--sample", action="store_true", help="synthetic reviews, to try it")
    parser.add_argument(
        "--validation",
        type=float,
        default=0.0,
        help="measure on this fraction of the training reviews instead of the test reviews",
    )
    parser.add_argument(
        "--single-marks",
        action="store_true",
        help='each punctuation mark is a token, also those of "don\'t" and "..."',
    )
    parser.add_argument(
        "--shares",
        action="store_true",
        help="log-count ratios of shares of all n-grams, not of reviews",
    )
    arguments = parser.parse_args(argv)
    source, train, test = imdb_reviews.load(arguments.data_dir, arguments.sample)
    if arguments.validation:
        train, test = train.split(arguments.validation, 0)
    if arguments.single_marks:
        train, test = single_marks(train), single_marks(test)
    print(source)
    found = measure(train, test, (0.1, 1.0), arguments.shares)
    for strength, accuracy in found["test_accuracy"].items():
        print(f"C = {strength}: accuracy {accuracy:.4f}")
    print(f"{found['ngrams']:,} n-grams, {found['processor_seconds']} s of CPU time")
    return found


if __name__ == "__main__":
    main()
