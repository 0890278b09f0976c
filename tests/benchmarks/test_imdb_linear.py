"""The linear mark for the IMDB example, on the synthetic sample."""

import re

import numpy as np
import pytest

from benchmarks import imdb_linear
from examples.imdb import data, text


def test_it_learns():
    pytest.importorskip("sklearn")
    found = imdb_linear.main(["--sample", "--validation", "0.25"])
    # A tenth of the sample's verdicts are inverted.
    assert 0.75 < found["test_accuracy"][0.1] < 0.95
    assert found["ngrams"] > 1000


def test_single_marks():
    given = "\"Don't!\" he said...<br />It's rock'n'roll."
    (spaced,) = imdb_linear.single_marks(data.Reviews([given], np.array([1]))).texts
    expected = re.findall(r"\w+|[^\w\s]", given.replace("<br />", " ").lower())
    assert text.tokens(spaced, punctuation=True) == expected
