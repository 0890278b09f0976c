"""The command line of `examples.imdb_classification`."""

import pytest

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
        ["predict"],
        ["predict", "runs/imdb-best"],
    ],
    ids=" ".join,
)
def test_wrong_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(*arguments)
    assert exit_.value.code == 2 and "usage: " in capsys.readouterr().err


def test_default_is_a_recipe():
    assert {"post-positions", *imdb_classification.MODELS} == set(imdb_recipes.RECIPES)
