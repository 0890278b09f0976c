"""The linear mark for the IMDB example, on the synthetic sample."""

import pytest

from benchmarks import imdb_linear


def test_it_learns():
    pytest.importorskip("sklearn")
    found = imdb_linear.main(["--sample", "--validation", "0.25"])
    # A tenth of the sample's verdicts are inverted.
    assert 0.75 < found["test_accuracy"][0.1] < 0.95
    assert found["ngrams"] > 1000
