"""The kernel of global tokens against the reference: outputs and gradients, and what it costs."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import ops
from keras_attention.patterns import Block, Causal, Dilated, Global, Prefix, SlidingWindow, Strided
from tests import inside
from tests.kernels.banded_problems import segments, short_sequences
from tests.problems import compare, inputs, random

B, H, T = 2, 4, 60
NEAR = SlidingWindow(4, 3)
PADDING = np.arange(T)[None] >= np.array([[0], [20]])
PROBLEMS = {
    "window": {"pattern": NEAR | Global(3)},
    "padding on the left, a sink and a bias": {
        "pattern": NEAR | Global(3),
        "mask": PADDING[:, None, None],
        "sink": random(H, seed=4),
        "bias": random(1, H, T, 1, seed=5),
    },
    "causal": {"pattern": Causal() & (Global(2) | SlidingWindow(5, 0) | Prefix(4))},
    "blocks and texts": {"pattern": Block(6) | Global(2), "segment_ids": segments(B, T, T)},
    "strided": {"pattern": Strided(6) | Prefix(2), "logit_soft_cap": 2.0},
}
CI = pytest.mark.ci


@pytest.mark.parametrize(
    "name",
    [n if n.startswith(("window", "padding")) else pytest.param(n, marks=CI) for n in PROBLEMS],
)
def test_every_problem_is_that_of_the_reference(name):
    rest, arrays = dict(PROBLEMS[name]), inputs(B, T, T, groups=2)
    arrays |= {name: rest.pop(name) for name in ("sink", "bias") if name in rest}
    with short_sequences():
        expected = compare("global", arrays, rest)
    assert np.abs(expected["output"]).max() > 0.1


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_that_of_the_reference(dtype):
    with short_sequences():
        compare("global", inputs(B, T, T, groups=2), PROBLEMS["window"], dtype)


def explained(pattern, length=2048, **given):
    query = keras.ops.zeros((1, length, 2, 4))
    return ops.explain(query, query, query, pattern=pattern, **given)


@pytest.mark.any_backend
def test_it_is_chosen_for_unions_that_are_seen_in_part():
    window = SlidingWindow(16, 16)
    found = explained(window | Global(8))
    assert found.startswith("global: the pattern has a few global tokens")
    assert "16 blocks of 128 queries" in found
    assert "all queries over 8 keys, 8 queries over all keys" in found
    assert "queries over all keys" not in explained(window | Prefix(8))
    for pattern, why in (
        (Global(8), "the pattern has no global tokens beside"),
        (Dilated(2) & Causal(), "the pattern has no global tokens beside"),
        (window | Global(600), "the global tokens are many of all"),
        (Causal() | Prefix(8), "the pattern has no window and no rate"),
    ):
        assert f"not 'global': {why}" in explained(pattern)
    assert "not 'global': positions are not consecutive" in explained(window | Global(8), offset=3)


@pytest.mark.any_backend
def test_a_global_token_sees_all_and_is_seen_by_all():
    rows = keras.ops.convert_to_numpy((SlidingWindow(1, 1) | Global(2))(np.arange(9), np.arange(9)))
    assert rows[:2].all() and rows[:, :2].all() and rows[2:, 2:].sum() == 3 * 7 - 2


def test_lengths_may_be_unknown():
    """As in the call of a user's own layer, which Keras traces for any length."""
    layer = ka.MultiHeadAttention(2, 4, pattern=Global(2) | SlidingWindow(1, 1))
    x = keras.Input((None, 8))
    model = keras.Model(x, inside.OwnLayer(layer, False)(x))
    given = np.random.default_rng(0).normal(size=(2, 20, 8)).astype("float32")
    expected = keras.ops.convert_to_numpy(layer(given))
    np.testing.assert_allclose(model.predict(given, verbose=0), expected, atol=1e-5)
