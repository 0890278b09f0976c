"""The blockwise kernel against the reference: outputs and gradients, in one block and in many."""

import contextlib
import gc
import weakref

import keras
import numpy as np
import pytest

from keras_attention import patterns
from keras_attention.backend import backend
from keras_attention.kernels.tiles import plans, strategies
from keras_attention.spec import PositionBias
from tests.gradients import gradients
from tests.kernels.blockwise_problems import BLOCKS, CASES, RIGHT, problem
from tests.problems import (
    FEW,
    B,
    G,
    H,
    S,
    T,
    answers,
    attend,
    attended,
    blocks_of,
    check_dropout,
    compare,
    given,
    inputs,
    integers,
    largest_in_training,
    on_tensorflow,
    random,
    relative_bias,
    rows_of,
    slow,
    some,
)

# Those that differ most from one another.
QUICK = (
    "nothing allowed", "biases", "mask of heads", "many keys", "far offset",
    "wide window", "one query", "one key", "one of each", "one feature", "positions",
    "offset of rows", "shaw anywhere", "shaw of keys", "more queries than keys",
    "relative bias of rows",
)  # fmt: skip


@pytest.mark.parametrize("name", QUICK[::3] if FEW else QUICK)
def test_problems_in_blocks_are_those_of_the_reference(name):
    arrays, rest = problem(name)
    with BLOCKS["keys"]():
        expected = compare("blockwise", arrays, rest)
    assert name == "nothing allowed" or np.abs(expected["output"]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_problem_in_all_blocks_is_that_of_the_reference(name):
    arrays, rest = problem(name)
    expected = answers("reference", arrays, rest)
    assert name == "nothing allowed" or np.abs(expected["output"]).max() > 0.1
    for blocks in BLOCKS.values():
        with blocks():
            compare("blockwise", arrays, rest, expected=expected)


def plan_of(arrays):
    """The `Plan` of a problem."""
    spec, *heads = given(**{name: keras.ops.convert_to_tensor(x) for name, x in arrays.items()})
    sizes = plans.Sizes.of(*heads[:2])
    return plans.of(strategies.choose(spec, *heads, sizes), spec, sizes)


def test_the_problems_are_cut_as_they_are_meant_to_be():
    made = {}
    for name, blocks in BLOCKS.items():
        with blocks():
            made[name] = plan_of(inputs())
        assert made[name].single == (name in ("one", "one of rows"))
    assert made["4096"].chunks > 1
    assert made["700"].chunks == B * G and made["700"].query_blocks > 1
    assert made["keys"].query_blocks == 2 and made["keys"].key_blocks == 3
    assert made["keys"].queries * 2 > T and made["keys"].keys * 3 > S
    if "rows" in made:
        assert made["rows"].chunks > 1 and made["rows"].query_blocks > 1
        assert made["rows of heads"].chunks > 1
        assert all(made[name].keys == S + 3 for name in BLOCKS if "rows" in name)


def _rounded(array, dtype):
    """A float32 array of what `dtype` has room for."""
    return keras.ops.convert_to_numpy(keras.ops.cast(keras.ops.cast(array, dtype), "float32"))


BY_ROWS = [name for name in BLOCKS if "rows" in name]
# On JAX there are none.
BFLOAT16 = list(zip(["all masks", "causal", "shaw of heads"], BY_ROWS, strict=False))
BFLOAT16 += list(zip(["nothing allowed", "all masks", "all masks"], BY_ROWS, strict=False))


@pytest.mark.parametrize(("name", "rows"), BFLOAT16)
def test_products_in_bfloat16_are_those_of_the_reference(rows, name):
    with BLOCKS[rows]():
        # Weights and their gradients are rounded too.
        compare("blockwise", *problem(name), "bfloat16", roundings=1.5)


@pytest.mark.parametrize("rows", BY_ROWS[1:2])
def test_dropout_in_bfloat16_is_that_of_float32(rows):
    arrays, rest = problem("all masks")
    rest = {**rest, "dropout": 0.4, "seed": 3}
    with BLOCKS[rows]():
        rounded = {name: _rounded(array, "bfloat16") for name, array in arrays.items()}
        expected = answers("blockwise", rounded, rest)
        compare("blockwise", arrays, rest, "bfloat16", expected=expected, roundings=1.5)


@pytest.mark.parametrize(
    "context",
    [
        contextlib.nullcontext,
        lambda: blocks_of(16, 16),
        pytest.param(
            lambda: rows_of(4096),
            marks=pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no rows"),
        ),
    ],
    ids=["one tile", "blocks", "rows"],
)
def test_gradients_in_bfloat16_where_all_values_are_alike(context):
    """The gradient of a score is then the small difference of large numbers."""
    query, key, value = (random(2, 60, 2, 8, seed=n) for n in range(3))
    arrays = {"query": query, "key": key, "value": _rounded(value + 30, "bfloat16")}
    with context():
        found = answers("blockwise", arrays, {}, "bfloat16")
    expected = answers("reference", {n: _rounded(x, "bfloat16") for n, x in arrays.items()}, {})
    for name in ("query", "key"):
        error = np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max()
        assert error < 2**-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bias", "table"])
def test_narrow_gradients_of_many_blocks_are_added_up_in_float32(kind):
    """Beyond 256 times as much, bfloat16 has no number that is one more."""
    query = np.ones((1, 400, 1, 4), "float32")
    arrays = {**inputs(1, 1, 9, 1, 1, 4, 3), "query": query, "table": random(9, seed=5)}

    def function(query, key, value, table):
        bias = table[None, None, None]
        if kind == "table":
            bias = PositionBias(lambda i, j, t: keras.ops.take(t, j, axis=0)[None], (table,))
        return attend(query, key, value, bias=bias, kernel="blockwise").output

    def gradient(dtype):
        return gradients(function, [keras.ops.cast(x, dtype) for x in arrays.values()])[-1]

    expected = gradient("float32")
    with blocks_of(1, 9):
        found = gradient("bfloat16")
    # As many equal numbers: each rounded three times at most, and its inputs before.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2**-6 * np.abs(expected).max())


@pytest.mark.ci
@on_tensorflow
@pytest.mark.parametrize("blocks", ["one", "700", "keys"])
def test_what_a_tape_of_eager_code_keeps(blocks, monkeypatch):
    """No block of weights but where there is one, and enough for second derivatives."""
    import tensorflow as tf

    made, exp = [], backend.exp

    def watched(*args, **kwargs):
        found = exp(*args, **kwargs)
        made.append(weakref.ref(found))
        return found

    arrays = {**inputs(), "bias": random(1, H, 1, S)}
    tensors = [tf.constant(array) for array in arrays.values()]

    def total(kernel):
        output = attended(kernel, dict(zip(arrays, tensors, strict=True)), {"mask": RIGHT}).output
        return tf.reduce_sum(output**2)

    def second(kernel):
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                found = total(kernel)
            first = inner.gradient(found, tensors)
            found = sum(tf.reduce_sum(gradient**2) for gradient in first)
        return outer.gradient(found, tensors)

    with BLOCKS[blocks]():
        with monkeypatch.context() as patch, tf.GradientTape() as tape:
            patch.setattr(backend, "exp", watched)
            tape.watch(tensors)
            found = total("blockwise")
        gc.collect()
        assert len(made) >= 1
        assert blocks == "one" or not any(reference() is not None for reference in made)
        assert all(gradient is not None for gradient in tape.gradient(found, tensors))
        for one, other in zip(second("blockwise"), second("reference"), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


# Dropout


@pytest.mark.parametrize(
    "rate, blocks",
    [
        (0.5, "keys"),
        *(slow(0.5, blocks) for blocks in ("one", "4096", "700")),
        *(slow(rate, blocks) for rate in (0.1, 0.9) for blocks in BLOCKS),
    ],
)
def test_dropout(rate, blocks):
    with BLOCKS[blocks]():
        kept, _ = check_dropout("blockwise", inputs(), {}, rate)
    # No two blocks are alike: rows of any of them are long enough to be unique by chance.
    if rate == 0.5:
        assert len(np.unique(kept.reshape(-1, S), axis=0)) == B * H * T
        found = {
            kept[b, h, t : t + 6, s : s + 12].tobytes()
            for b, h in np.ndindex(B, H)
            for t in range(0, T - 6, 7)
            for s in range(0, S - 11, 12)
        }
        assert len(found) == B * H * 4 * 3


def test_dropout_of_the_reference():
    check_dropout("reference", inputs(), {}, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all masks", "shaw of heads", "sink", "causal", "relative bias"])
def test_dropout_beside_all_else(name):
    arrays, rest = problem(name)
    values = arrays.pop("relative_values", None)
    with BLOCKS["keys"]():
        kept, _ = check_dropout("blockwise", arrays, rest, 0.4)
        if values is not None:
            # They would hide the weights; the set is the same with them.
            arrays["relative_values"], arrays["query"] = values, 0.3 * arrays["query"]
            multiplier = keras.ops.convert_to_tensor(kept.astype("float32") / np.float32(0.6))
            # Masked weights are not shown, and have no effect.
            expected = answers("reference", arrays, {**rest, "multiplier": multiplier})
            dropout = {"dropout": 0.4, "seed": 3}
            compare("blockwise", arrays, {**rest, **dropout}, expected=expected)


# Memory


LONG = 640
MEMORY = {
    "plain": lambda: ({}, {}),
    "causal": lambda: ({}, {"pattern": patterns.Causal(), "mask": some(1, 1, 1, LONG)}),
    "dropout": lambda: ({}, {"dropout": 0.2, "seed": 1}),
    "shaw": lambda: ({"relative_keys": random(1, 7, 4), "relative_values": random(1, 7, 4)}, {}),
    "bias": lambda: ({"bias": random(1, 2, 1, LONG)}, {"logit_soft_cap": 2.0, "sink": random(2)}),
    "relative bias": lambda: ({"table": random(8, 2)}, {"between": relative_bias(2)}),
}


@pytest.mark.parametrize("name", ["plain", *(slow(name) for name in MEMORY if name != "plain")])
def test_scores_are_never_whole_in_training(name):
    more, rest = MEMORY[name]()
    arrays = {**inputs(1, LONG, LONG, 2, 1, 4, 4), **more}
    with blocks_of(40, 64):
        largest = largest_in_training("blockwise", arrays, rest)
    assert 40 * 64 <= largest <= LONG * LONG / 16
    if name == "plain":
        assert largest_in_training("reference", arrays, rest) >= 2 * LONG * LONG


@pytest.mark.parametrize("given", [{}, {"query_positions": integers(0, 64, 64)}], ids=["", "moved"])
def test_no_array_has_features_for_every_pair(given):
    """Of embeddings of distances."""
    length, size = 64, 40
    arrays = inputs(1, length, length, 2, 2, size, size)
    arrays |= {f"relative_{name}": random(1, 9, size) for name in ("keys", "values")}
    largest = largest_in_training("auto", arrays, given)
    assert length * length <= largest < length * length * size / 4
