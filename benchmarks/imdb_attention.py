"""What attention is worth in the IMDB example: `python -m benchmarks.imdb_attention …`.

The example's model `ngrams` with its attention, and with the same weight on every word, each
trained on the same reviews with the same settings, and measured on reviews held out of them.
"""

import keras

from benchmarks import imdb_linear, runner
from examples import imdb_classification as example
from examples import imdb_ngrams, training

SETTINGS = imdb_linear.SETTINGS


def measure(reviews, seeds, epochs):
    """Rows of the model with attention and without: loss and accuracy of each seed."""
    sets = dict(zip(("train", "held_out"), reviews.split(0.2, seed=0), strict=True))
    labels = {name: found.labels for name, found in sets.items()}
    rows, size, ngrams = imdb_linear.numbered(sets, SETTINGS)
    for attend in (True, False):
        for seed in seeds:
            keras.utils.set_random_seed(seed)
            how = SETTINGS["batch_size"], lambda some: example.pad(some, SETTINGS), seed
            batches = {
                name: training.batches_by_length(
                    rows[name], y[:, None], *how, shuffle=name == "train"
                )
                for name, y in labels.items()
            }
            model = imdb_ngrams.build(size, 1 + ngrams)
            for name in ("word_score", "position_score"):
                model.get_layer(name).trainable = attend  # They are 0 at first.
            imdb_ngrams.set_ratios(model, rows["train"], labels["train"])
            optimizer = imdb_ngrams.optimizer(epochs * len(batches["train"]))
            model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
            for epoch in range(epochs):
                batches["train"].start(epoch)
                model.fit(batches["train"], shuffle=False, verbose=0)
            loss, accuracy = model.evaluate(batches["held_out"], verbose=0)
            name = "attention" if attend else "all alike"
            found = {"held_out_loss": loss, "held_out_accuracy": accuracy}
            yield {"name": name, "seed": seed, **found}


def main():
    options = runner.parsed(__doc__, imdb_linear.SOURCE)
    source, train, _ = imdb_linear.reviews(options)
    seeds, epochs = ((0,), 1) if options.small else ((0, 1), SETTINGS["epochs"])
    runner.report(measure(train, seeds, epochs), options, reviews=source)


if __name__ == "__main__":
    main()
