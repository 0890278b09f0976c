"""Accuracy of a linear model on IMDB: `python -m benchmarks.imdb_linear --data-dir aclImdb`.

Logistic regression on words, pairs and triples of words. Each counts once per review and is scaled
by its log-count ratio (Wang & Manning 2012). It has the reviews and n-grams of the example's `best`
model, and no attention, so it is the mark for that model. It needs scikit-learn.
"""

import argparse
import dataclasses
import pathlib
import time

import numpy as np

from examples.imdb import data as imdb_data
from examples.imdb import ngrams as imdb_ngrams
from examples.imdb import recipes as imdb_recipes
from examples.imdb import text as imdb_text

RECIPE = imdb_recipes.RECIPES["best"]


def measure(dataset, regularization):
    """Test accuracy for inverse strengths of regularization, with CPU time."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    start = time.process_time()
    length = max(len(imdb_text.tokens(text, True)) for text in dataset.train.texts)
    encoder = imdb_text.Encoder.learn(
        dataset.train.texts, RECIPE, RECIPE.vocabulary_size, max(length, 1)
    )
    rows = {
        part: [encoder(text) for text in getattr(dataset, part).texts] for part in ("train", "test")
    }
    ratios = imdb_ngrams.log_ratios(rows["train"], dataset.train.labels, encoder.size)

    def features(reviews):
        found = [row[:, 1:][row[:, 1:] > 0] for row in reviews]
        columns = np.concatenate(found)
        starts = np.cumsum([0, *map(len, found)])
        return sparse.csr_matrix((ratios[columns], columns, starts), (len(found), encoder.size))

    train, test = features(rows["train"]), features(rows["test"])
    accuracies = {}
    for strength in regularization:
        model = LogisticRegression(C=strength, solver="liblinear", dual=True, max_iter=1000)
        model.fit(train, dataset.train.labels)
        accuracies[strength] = float(np.mean(model.predict(test) == dataset.test.labels))
    return {
        "ngrams": encoder.size - encoder.vocabulary_size,
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
    arguments = parser.parse_args(argv)
    dataset = imdb_data.load(arguments.data_dir, arguments.sample)
    if arguments.validation:
        train, test = dataset.train.split(arguments.validation, 0)
        dataset = dataclasses.replace(dataset, train=train, test=test)
    print(dataset.warning or dataset.source)
    found = measure(dataset, (0.1, 1.0))
    for strength, accuracy in found["test_accuracy"].items():
        print(f"C = {strength}: accuracy {accuracy:.4f}")
    print(f"{found['ngrams']:,} n-grams, {found['processor_seconds']} s of CPU time")
    return found


if __name__ == "__main__":
    main()
