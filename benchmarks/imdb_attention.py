"""What attention is worth in the IMDB example: `python -m benchmarks.imdb_attention --data-dir …`.

The example's `best` model with its attention, and with the same weight on every word, each trained
on the same training reviews with the same settings, and measured on reviews held out of them.
"""

import argparse
import pathlib

import keras

from examples.imdb import data as imdb_data
from examples.imdb import models as imdb_models
from examples.imdb import ngrams as imdb_ngrams
from examples.imdb import recipes as imdb_recipes
from examples.imdb import text as imdb_text
from examples.imdb import training as imdb_training

RECIPE = imdb_recipes.RECIPES["best"]


def measure(reviews, seeds, epochs):
    """For the model with attention and without: loss and accuracy of each seed after `epochs`."""
    train, held_out = reviews.split(0.2, seed=0)
    encoder = imdb_text.Encoder.learn(
        train.texts, RECIPE, RECIPE.vocabulary_size, RECIPE.max_length
    )
    rows, held_out_rows = ([encoder(text) for text in part.texts] for part in (train, held_out))
    log_ratios = imdb_ngrams.log_ratios(rows, train.labels, encoder.size)
    steps = epochs * -(-len(rows) // RECIPE.batch_size)
    found = {}
    for attend in (True, False):
        for seed in seeds:
            keras.utils.set_random_seed(seed)
            model = imdb_models.build(RECIPE, encoder.size, log_ratios, attend)
            imdb_training.compile_classifier(model, imdb_models.optimizer(RECIPE, steps))
            settings = {"seed": seed, "batch_size": RECIPE.batch_size}
            for epoch in range(epochs):
                imdb_training.train_epoch(model, rows, train.labels, encoder, epoch, settings)
            figures = imdb_training.measure(
                model, held_out_rows, held_out.labels, encoder, "held_out"
            )
            print(f"{'attention' if attend else 'all alike'}, seed {seed}: {figures}", flush=True)
            found.setdefault(attend, []).append(figures)
    return found


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data-dir", type=pathlib.Path, help="an unpacked aclImdb folder")
    source.add_argument("--sample", action="store_true", help="synthetic reviews, to try it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    arguments = parser.parse_args(argv)
    dataset = imdb_data.load(arguments.data_dir, arguments.sample)
    print(dataset.warning or dataset.source)
    return measure(dataset.train, arguments.seeds, arguments.epochs)


if __name__ == "__main__":
    main()
