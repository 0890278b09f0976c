"""Sparse normalizations in tiles of whole rows: the reference and its gradients, in less memory."""

import keras
import numpy as np
import pytest

from keras_attention import normalizations, ops, patterns
from keras_attention.kernels.tiles import plans, strategies
from keras_attention.spec import AttentionSpec
from tests.arrays import numpy, random
from tests.gradients import gradients

# A tile has 16 queries at least.
B, T, S, H, G, K, V = 2, 23, 19, 4, 2, 4, 3
# Far enough from one another that some weights are zero, and more than one is not.
QUERY, KEY, VALUE = 2 * random(B, T, H, K, seed=1), random(B, S, G, K, seed=2), random(B, S, G, V)
# Padding, with a row in which a query has no key.
MASK = (np.arange(S) < np.array([[S], [11]]))[:, None, None] & (np.arange(T) != 1)[:, None]
SEGMENTS = [np.arange(n) // 4 * np.ones((B, 1), int) for n in (T, S)]
NORMALIZATIONS = {
    "sparsemax": normalizations.Sparsemax(),
    "entmax15": normalizations.Entmax(),
    "entmax": normalizations.Entmax(1.2),
    "top_k": normalizations.TopK(3),
}
CASES = {
    "plain": {},
    "keys": {"mask": MASK[:, :, :1]},
    "mask": {"mask": MASK},
    "causal, bias": {"pattern": "causal", "bias": random(1, H, T, S, seed=3)},
    "window, cap": {"pattern": patterns.SlidingWindow(2, 1), "logit_soft_cap": 2.0},
    "alibi, segments": {"position": "alibi", "segment_ids": SEGMENTS, "mask": MASK},
    "union": {"pattern": patterns.SlidingWindow(1, 0) | patterns.Prefix(2)},
}


def plan():
    spec = NORMALIZATIONS["sparsemax"].into_spec(AttentionSpec())
    sizes = plans.Sizes(B, H, G, T, S)
    arrays = [keras.ops.array(x) for x in (QUERY, KEY, VALUE)]
    return plans.of(strategies.choose(spec, *arrays, sizes), spec, sizes)


def test_there_are_tiles():
    assert plan().single
    with in_tiles():
        found = plan()
        assert (found.batches, found.groupings, found.key_blocks) == (B, G, 1)
        assert found.query_blocks > 1


def in_tiles():
    """Of some queries of one sequence and group of heads."""
    return strategies.using(scores=1)


def attend(query, key, value, name, kernel="blockwise", **arguments):
    given = {"normalization": NORMALIZATIONS[name], "kernel": kernel, **arguments}
    with in_tiles():
        return ops.attend(query, key, value, **given)


# All cases with one, and some with the others.
PAIRS = [("sparsemax", case) for case in CASES]
PAIRS += [(name, case) for name in list(NORMALIZATIONS)[1:] for case in ("keys", "causal, bias")]


@pytest.mark.parametrize("name, case", PAIRS)
def test_tiles_are_the_reference_with_gradients(name, case):
    def function(*arrays, kernel):
        *arrays, upstream = arrays
        # The gradient by what it is multiplied by is the output.
        return attend(*arrays, name, kernel, **CASES[case]) * upstream

    arrays = [QUERY, KEY, VALUE, random(B, T, H, V, seed=4)]
    *found, output = gradients(lambda *x: function(*x, kernel="blockwise"), arrays)
    expected = gradients(lambda *x: function(*x, kernel="reference"), arrays)
    for one, other in zip((*found, output), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)
    if case == "mask":
        assert not output[:, 1].any() and not found[0][:, 1].any()


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_one_tile_stores_its_weights(name):
    def function(*arrays, kernel):
        given = {"normalization": NORMALIZATIONS[name], "mask": MASK, "kernel": kernel}
        return keras.ops.sin(ops.attend(*arrays, **given))

    for kernel in ("blockwise", "reference"):
        found = gradients(lambda *x, k=kernel: function(*x, kernel=k), [QUERY, KEY, VALUE])
        if kernel == "blockwise":
            first = found
    for one, other in zip(first, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


def test_weights_that_are_dropped_are_dropped_in_the_gradient():
    def function(value, query):
        return attend(query, KEY, value, "entmax15", dropout=0.5, seed=7)

    output = numpy(function(VALUE, QUERY))
    # The output is linear in the values, and so its gradient gives it back.
    upstream = random(*output.shape, seed=8)
    of_value, of_query = gradients(
        lambda v, q: keras.ops.multiply(function(v, q), upstream), [VALUE, QUERY]
    )
    np.testing.assert_allclose(np.sum(of_value * VALUE), np.sum(output * upstream), rtol=1e-4)
    step, eps = random(*QUERY.shape, seed=9), 1e-3
    ends = [np.sum(numpy(function(VALUE, QUERY + s * eps * step)) * upstream) for s in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * eps)
    np.testing.assert_allclose(np.sum(of_query * step), slope, rtol=2e-2, atol=2e-2)
    assert np.abs(output - numpy(attend(QUERY, KEY, VALUE, "entmax15", "reference"))).max() > 0.1
