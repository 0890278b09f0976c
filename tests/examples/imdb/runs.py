"""What tests of the IMDB example share: small runs and models."""

import numpy as np

from examples import imdb_classification, imdb_ngrams

TINY = ["--model", "post", "--vocabulary-size", "200", "--max-length", "12"]
TEXTS = ["superb", "a dull plot , dull", "the plot was superb and the plot was not dull at all"]
MODELS = ("post", "post-positions", "transformer", "ngrams")


def main(*arguments):
    return imdb_classification.main(arguments)


def settings_of(name, **changes):
    return {"model": name, "max_length": 1000, "vocabulary_size": 100, **changes}


def tokenizer_of(name, texts=TEXTS * 2, size=100):
    return imdb_classification.learn_tokenizer(texts, name, size)


def small_model(name):
    """A model with weights at random, and the function from a text to its row."""
    tokenizer, settings = tokenizer_of(name), settings_of(name)
    size = tokenizer.get_vocab_size()

    ngrams, learned = 0, None
    if name in imdb_classification.NGRAMS:
        rows = imdb_classification.encode(tokenizer, TEXTS * 2, settings)
        learned = imdb_ngrams.learn(rows, size)
        ngrams = 1 + sum(map(len, learned.values()))

    def row(text):
        (found,) = imdb_classification.encode(tokenizer, [text], settings)
        return imdb_ngrams.add_numbers(found, learned, size) if learned else found

    model = imdb_classification.build(settings, size, ngrams)
    rng = np.random.default_rng(1)
    for variable in model.variables if name == "ngrams" else model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) / 4)
    return model, row
