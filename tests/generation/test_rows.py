"""Rows, dtypes and compilation of generation: none changes what is found."""

import keras
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
    toy_start,
    toy_step,
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


@pytest.mark.ci
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("greedy", {}),
        ("sample", {"seed": 3, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.5}),
        ("beam_search", {"num_beams": 3, "num_return": 3}),
    ],
)
def test_compiled_gives_what_eager_gives(method, options):
    table, tokens = random_table(8, seed=7), np.array([0, 1, 2, 3], "int32")
    options = {"max_tokens": 6, "stop_tokens": (5,), **options}

    def run(table, tokens, state):
        cache, memory = toy_start(tokens.shape[0] * [0])
        return getattr(generation, method)(
            toy_step(table), tokens, {**cache, "state": state}, memory, **options
        )

    state = np.arange(4, dtype="int32")
    layer = keras.layers.Dense(1)
    layer.build((1, 1))
    eager = run(*map(ops.convert_to_tensor, (table, tokens, state)))
    compiled = generation.compiled(run, layer)(table, tokens, state)
    assert isinstance(compiled, generation.Generated)
    for one, other in zip(numpy(tuple(compiled)), numpy(tuple(eager)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
