"""Rows and dtypes of generation: none changes what is found."""

import numpy as np
import pytest

from keras_attention import generation
from tests.generation.toy import (
    LENGTH,
    TOKENS,
    WAYS,
    numpy,
    of_table,
    ops,
    random_table,
    toy,
)


def test_the_best_hypothesis_alone_has_the_shapes_of_greedy():
    options = {"num_beams": 3, "max_tokens": LENGTH, "stop_tokens": (0, 2)}
    one, best = (
        toy("beam_search", random_table(), TOKENS, num_return=n, **options) for n in (1, None)
    )
    for some, alone in zip(one, best, strict=True):
        np.testing.assert_array_equal(some[:, 0], alone)
    greedy = toy("greedy", random_table(), TOKENS, max_tokens=LENGTH, stop_tokens=(0, 2))
    assert [a.shape for a in best] == [a.shape for a in greedy] == [(3, 7), (3,), (3, 7), (3,)]
    assert [a.dtype for a in best] == [a.dtype for a in greedy]


@pytest.mark.parametrize("method", WAYS)
def test_no_rows_give_none(method):
    options = {"max_tokens": 4, "stop_tokens": (2,), **WAYS[method]}
    found = getattr(generation, method)(
        of_table(random_table(5)), np.zeros(0, "int32"), np.zeros((0, 3), "float32"), **options
    )
    assert [tuple(array.shape) for array in found] == [(0, 4), (0,), (0, 4), (0,)]


METHODS = {
    "greedy": {"max_tokens": LENGTH, "stop_tokens": (0, 2)},
    "beam_search": {
        "num_beams": 4,
        "num_return": 4,
        "max_tokens": LENGTH,
        "length_penalty": 0.6,
        "stop_tokens": (0, 2),
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_logits_are_summed_in_float32(method):
    table = ops.cast(random_table(scale=4), "bfloat16")
    exact = numpy(ops.cast(table, "float32"))
    half, full = (toy(method, array, TOKENS, **METHODS[method]) for array in (table, exact))
    assert half.log_probabilities.dtype == half.scores.dtype == "float32"
    for one, other in zip(half, full, strict=True):
        np.testing.assert_array_equal(one, other)
