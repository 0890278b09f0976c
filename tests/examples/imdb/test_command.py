"""The command line of `examples.imdb_classification`."""

import pytest

from examples.errors import UsageError
from examples.imdb import command as imdb_classification
from examples.imdb import recipes as imdb_recipes
from tests.examples.imdb.runs import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "best", "--positions"],
        ["--model", "other"],
        ["--epochs", "0"],
        ["--validation", "1"],
        ["--data-dir", "x", "--sample"],
        ["--lora", "4"],
        ["--model", "post", "--learning-rate", "1e-4"],
        ["--pretrained", "bert", "--model", "post"],
        ["--pretrained", "bert", "--positions"],
        ["--pretrained", "bert", "--vocabulary-size", "200"],
        ["--pretrained", "bert", "--lora", "0"],
        ["--pretrained", "bert", "--learning-rate", "0"],
        ["predict"],
        ["predict", "runs/imdb-best"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


def test_positions_are_trained_longer_on_few_reviews(tmp_path, monkeypatch):
    from examples.imdb import training

    given = []

    def train(run, dataset, settings, devices):
        given.append((settings["model"], settings["epochs"]))
        raise UsageError

    monkeypatch.setattr(training, "train", train)
    for arguments in ([], ["--limit", 8], ["--limit", 8, "--positions"]):
        main("--sample", "--model", "post", *arguments, "--output", tmp_path / "run")
    assert given == [("post", 2), ("post", 2), ("post-positions", 3)]


def test_default_is_a_recipe():
    assert {"post-positions", *imdb_classification.MODELS} == set(imdb_recipes.RECIPES)
