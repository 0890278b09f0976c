"""Does the review classifier's explanation hold? `python -m benchmarks.imdb_deletion RUN WIDE …`.

Of test reviews, drawn at random, words are deleted from what the model `attention` reads: those
with the largest contributions to its answer, those with the largest weights of a run of the model
`wide`, and random ones. A row is how far each moves the probability, on average. Runs of other
backends add their rows to the file.
"""

import pathlib

import numpy as np

from benchmarks import imdb_linear, runner
from examples import imdb_classification as example
from examples import imdb_models, imdb_ngrams, shared, texts
from examples.imdb_reviews import Reviews

WORDS = 5
BACKENDS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch": "PyTorch"}


def largest(weights):
    """The places of the largest of the weights."""
    return np.argsort(-weights)[:WORDS]


def measure(run, wide, reviews, seed):
    """How far the probability of each review moves, by what is deleted."""
    figures, model = shared.load_run(run, example.PROGRAM)
    settings, tokenizer = figures["settings"], texts.load_tokenizer(run)
    rows = example.encode(tokenizer, reviews.texts, settings)
    _, former = shared.load_run(wide, example.PROGRAM)
    learned, others = imdb_ngrams.load(wide), texts.load_tokenizer(wide)
    beside = [
        imdb_ngrams.add_numbers(row, learned, others.get_vocab_size())
        for row in example.encode(others, reviews.texts, settings)
    ]
    (backend,) = (title for name, title in BACKENDS.items() if name in figures["versions"])
    rng, moved = np.random.default_rng(seed), {}

    def probability(row):
        return float(model.predict_on_batch(example.pad([row], settings))[0, 0])

    for row, grams in zip(rows, beside, strict=True):
        whole = probability(row)
        shares, _ = imdb_models.contributions(model, example.pad([row], settings))
        towards = shares[: len(row)] * (1 if whole >= 0.5 else -1)
        weights = imdb_models.weights(former, example.pad([grams], settings))[: len(row)]
        chosen = {
            "contributions": largest(towards),
            "weights of `wide`": largest(weights),
            "at random": rng.permutation(len(row))[:WORDS],
        }
        for name, places in chosen.items():
            after = probability(np.delete(row, places))
            flipped = (after >= 0.5) != (whole >= 0.5)
            moved.setdefault(name, []).append((abs(after - whole), flipped))
    for name, pairs in moved.items():
        change, flipped = np.mean(pairs, axis=0)
        row = {"trained with": backend, "deleted": name}
        yield row | {"change": float(change), "other label": float(flipped)}


def main():
    folder = {"type": pathlib.Path}
    arguments = {
        "run": folder | {"help": "a finished run of the model `attention`"},
        "wide": folder | {"help": "one of the model `wide`"},
        "--count": {"type": int, "default": 500, "help": "test reviews"},
        **imdb_linear.SOURCE,
    }
    options = runner.parsed(__doc__, arguments)
    source, _, test = imdb_linear.reviews(options)
    some = np.random.default_rng(0).permutation(len(test))[: options.count]
    test = Reviews([test.texts[i] for i in some], test.labels[some])
    rows, identity = measure(options.run, options.wide, test, 0), ("trained with", "deleted")
    about = {"reviews": source, "words": WORDS, "count": len(test)}
    runner.report(rows, options, identity=identity, **about)


if __name__ == "__main__":
    main()
