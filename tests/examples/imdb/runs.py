"""What tests of the IMDB example share: small runs and models."""

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np

from examples.imdb import command as imdb_classification
from examples.imdb import models as imdb_models
from examples.imdb import recipes as imdb_recipes
from examples.imdb import text as imdb_text

ROOT = Path(__file__).parents[3]
TINY = ["--model", "post", "--vocabulary-size", "200", "--max-length", "12"]


def main(*arguments):
    return imdb_classification.main([str(argument) for argument in arguments])


def figures(output):
    return json.loads((output / "figures.json").read_text(encoding="utf-8"))


def curves(output):
    """What each epoch gave, without the time that it took."""
    return [
        {name: value for name, value in epoch.items() if "seconds" not in name}
        for epoch in figures(output)["epochs"]
    ]


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()} if path.is_dir() else None


def encoder(texts, name="post", vocabulary_size=100, max_length=10, **changes):
    recipe = dataclasses.replace(imdb_recipes.RECIPES[name], **changes)
    return imdb_text.Encoder.learn(texts, recipe, vocabulary_size, max_length)


TEXTS = ["superb", "a dull plot , dull", "the plot was superb and the plot was not dull at all"]


def small_model(name):
    """A model of a recipe with weights at random, and its encoder."""
    encode = encoder(TEXTS * 2, name, max_length=1000)
    ratios = np.random.default_rng(0).normal(size=encode.size)
    recipe = imdb_recipes.RECIPES[name]
    model = imdb_models.build(recipe, encode.size, ratios)
    rng = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) / 4)
    return model, encode


def saved(output):
    """The classifier and the encoder that a run has left."""
    return (
        keras.models.load_model(output / "model.keras"),
        imdb_text.Encoder.load(output / "text.npz"),
    )


def foreign_figures(path):
    path.mkdir(parents=True)
    (path / "figures.json").write_text('{"program": "another"}')


def unfinished(path):
    said = figures(path) | {"finished": False}
    (path / "figures.json").write_text(json.dumps(said))
