"""BigBird's pattern against the dense mask: pairs, outputs, gradients, and what is computed."""

import keras
import numpy as np
import pytest

from keras_attention import ops
from keras_attention.patterns import Causal, Global, RandomBlocks, SlidingWindow
from tests.kernels.banded_problems import segments, short_sequences
from tests.problems import compare, inputs

B, T = 2, 60
NEAR, BLOCKS = SlidingWindow(4, 3), RandomBlocks(T, 5, 2, seed=3)
PADDING = np.arange(T)[None] >= np.array([[0], [20]])
# Name: the kernel, and the problem.
PROBLEMS = {
    "bigbird": ("global", {"pattern": NEAR | Global(3) | BLOCKS}),
    "padding": ("global", {"pattern": BLOCKS | NEAR | Global(2), "mask": PADDING[:, None, None]}),
    "causal": ("global", {"pattern": Causal() & (Global(2) | SlidingWindow(5, 0) | BLOCKS)}),
    "alone": ("banded", {"pattern": BLOCKS}),
    "beside a window": ("banded", {"pattern": NEAR | BLOCKS, "segment_ids": segments(B, T, T)}),
    "of a longer sequence": ("banded", {"pattern": NEAR | RandomBlocks(83, 7, 3)}),
}
CI = pytest.mark.ci


@pytest.mark.parametrize(
    "name", [n if n in ("bigbird", "alone") else pytest.param(n, marks=CI) for n in PROBLEMS]
)
def test_every_problem_is_that_of_the_dense_mask(name):
    kernel, rest = PROBLEMS[name]
    with short_sequences():
        expected = compare(kernel, inputs(B, T, T, groups=2), rest)
    assert np.abs(expected["output"]).max() > 0.1


@pytest.mark.any_backend
def test_a_seed_is_the_same_choice_for_ever():
    firsts = RandomBlocks(12, 2, 2, seed=1).groups().keys[:, ::2]
    assert firsts.tolist() == [[6, 4], [0, 6], [6, 8], [8, 0], [6, 0], [2, 4]]


@pytest.mark.any_backend
def test_only_visible_pairs_are_computed():
    pattern = SlidingWindow(64, 64) | Global(8) | RandomBlocks(4096, 64, 3)
    for length, blocks in ((4096, 64), (3000, 47)):
        query = keras.ops.zeros((1, length, 2, 4))
        found = ops.explain(query, query, query, pattern=pattern)
        assert found.startswith("global"), found
        assert f"{blocks} groups of 64 queries and the 192 keys that they may see" in found
