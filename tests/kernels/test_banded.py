"""The kernel of windows and rates against the reference: outputs and gradients."""

import keras
import numpy as np
import pytest

from keras_attention.patterns import SlidingWindow
from tests.kernels.banded_problems import CASES, B, H, T, banded_problem, short_sequences
from tests.problems import (
    FEW,
    answers,
    attended,
    by_default,
    check_dropout,
    compare,
    inputs,
    integers,
    largest_in_training,
)


@pytest.fixture
def short():
    with short_sequences():
        yield


# Those of the rest differ from one of these in little.
QUICK = (
    "causal window", "window of itself", "few queries", "nothing allowed", "few keys", "many keys",
    "few queries of many keys", "beyond the keys", "before the keys", "biases of heads",
    "dilated", "dilated causal", "block with a table", "relative bias", "strided causal",
    "not by distance", "dilated window", "shaw prefix", "axial", "neighborhood", "grid window",
)  # fmt: skip


@pytest.mark.parametrize("name", by_default(QUICK, CASES))
def test_every_problem_is_that_of_the_reference(short, name):
    arrays, rest = banded_problem(name)
    expected = compare("banded", arrays, rest)
    nothing = name in ("beyond the keys", "before the keys", "nothing allowed")
    assert nothing or np.abs(expected["output"]).max() > 0.1


@pytest.mark.slow
def test_the_largest_array_grows_with_the_length():
    largest = [
        largest_in_training(
            "banded", inputs(1, length, length, 2, 1, 4, 4), {"pattern": SlidingWindow(15, 0)}
        )
        for length in (640, 1280)
    ]
    assert 640 < largest[0] <= 640 * 640 / 2
    assert largest[1] <= 2.1 * largest[0]


@pytest.mark.parametrize(
    "name",
    by_default([] if FEW else ["strided"], ["strided", "window", "dilated", "causal window"]),
)
def test_dropout(short, name):
    arrays, rest = banded_problem(name)
    kept, there = check_dropout("banded", arrays, rest, 0.4)
    # Rows see as many keys at the same distances, and still are not alike.
    rows = {
        kept[b, h, t][there[b, h, t]].tobytes()
        for b, h in np.ndindex(B, H)
        for t in range(10, T - 10)
    }
    assert len(rows) > 10


def test_queries_without_keys_are_known_and_have_zeros(short):
    arrays, rest = banded_problem("few keys")
    with_keys = [
        keras.ops.convert_to_numpy(attended(kernel, arrays, rest).has_keys)
        for kernel in ("banded", "reference")
    ]
    empty = ~np.broadcast_to(with_keys[1], (B, H, T))
    np.testing.assert_array_equal(~np.broadcast_to(with_keys[0], empty.shape), empty)
    assert empty.any() and not empty.all()
    found = answers("banded", arrays, rest)
    for name in ("output", "query"):
        np.testing.assert_array_equal(found[name][empty.transpose(0, 2, 1)], 0.0)


# Layers


def test_a_window_over_positions_that_are_anywhere_is_no_band(short):
    arrays = inputs(B, T, T)
    rest = {"pattern": SlidingWindow(3, 3), "key_positions": integers(0, 50, T)}
    with pytest.raises(ValueError, match="not consecutive"):
        answers("banded", arrays, rest)
    compare("auto", arrays, rest)
