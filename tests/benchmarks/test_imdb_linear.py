"""The linear mark for the IMDB example, on the synthetic sample."""

import re

import numpy as np
import pytest

from benchmarks import imdb_linear
from examples import imdb_classification, imdb_reviews


@pytest.mark.ci
def test_it_learns(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr("sys.argv", ["imdb_linear", "--small"])
    found = imdb_linear.main()
    # One label of the sample in fifty is wrong.
    weaker, _ = found["rows"]
    assert weaker["C"] == 0.1 and weaker["test_accuracy"] > 0.75 and weaker["ngrams"] > 1000


def test_single_marks():
    given = "\"Don't!\" he said...<br />It's rock'n'roll."
    (spaced,) = imdb_linear.single_marks(imdb_reviews.Reviews([given], np.array([1]))).texts
    expected = re.findall(r"\w+|[^\w\s]", given.replace("<br />", " ").lower())
    tokenizer = imdb_classification.learn_tokenizer([spaced] * 2, "ngrams", 100)
    assert tokenizer.encode(spaced).tokens == expected
