"""What `examples.imdb_classification predict` prints for texts."""

import pytest

from examples import imdb_classification
from tests.examples.imdb.runs import MODELS, TEXTS, main, small_model


def test_predict(finished, capsys):
    not_utf_8 = b"Am\xe9lie dull".decode("utf-8", "surrogateescape")
    texts = ["The plot was superb, zyxxy.", "dull " * 20_000, not_utf_8, "", "?!", "zyxxy xyzzy"]
    assert main("predict", finished, *texts) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(texts)
    for line in lines[:6:2]:
        label, probability = line.split()[:2]
        assert label == ("positive" if float(probability) >= 0.5 else "negative")
    assert "zyxxy (unknown) " in lines[1] and "superb " in lines[1]
    assert lines[3].strip() == "attended most: dull 100.0%"
    assert all(line.startswith("no label ") for line in lines[6::2])
    assert set(lines[7::2]) == {"    it has no words that the model knows"}


@pytest.mark.parametrize("name", MODELS)
def test_percentages_sum_to_100(name):
    model, row_of = small_model(name)
    for text in (*TEXTS, "the superb plot was not all dull at " * 30 + "zyxxy"):
        words = [(word, True) for word in text.split()]
        said = imdb_classification.attended(model, row_of(text)[None], words)
        percentages = [float(part.split()[-1].rstrip("%")) for part in said.split("%, ")]
        assert sum(percentages) == pytest.approx(100, abs=0.5)
