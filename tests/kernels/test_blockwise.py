"""The blockwise kernel against the reference: outputs and gradients, in one block and in many."""

import gc
import itertools
import pathlib
import weakref

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_attention
from keras_attention import ops, patterns, positions
from keras_attention.kernels import plans
from keras_attention.spec import PositionBias
from tests.gradients import gradients
from tests.problems import (
    BACKEND,
    FEW,
    PATTERNS,
    B,
    G,
    H,
    K,
    S,
    T,
    Thirds,
    V,
    answers,
    at_once,
    attend,
    attended,
    blocks_of,
    by_xla,
    check_dropout,
    compare,
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

# JAX compiles each case anew.
EXAMPLES = {"tensorflow": 3, "jax": 2, "torch": 10}[BACKEND]

# One block; several of batch, heads and queries; several of queries and keys, which fill neither.
BLOCKS = {
    "one": lambda: at_once(2**20),
    "4096": lambda: at_once(4096),
    "700": lambda: at_once(700),
    "keys": lambda: blocks_of(16, 16),
}
# JAX's arrays have one size, and queries see various numbers of keys.
if keras.backend.backend() != "jax":
    BLOCKS |= {
        "one of rows": lambda: rows_of(700, kept=2**20),
        "rows": lambda: rows_of(700),
        "rows of heads": lambda: rows_of(4096),
    }


def with_empty_rows():
    mask = some(B, H, T, S, rate=0.1)
    mask[0, 0, 3] = False
    mask[0, :, 5] = False
    mask[1] = False
    return mask


RIGHT = (np.arange(S) < np.array([[S], [20]]))[:, None, None]
LEFT = RIGHT[..., ::-1].copy()
WINDOW = patterns.SlidingWindow(3, 5)

# Name: arrays beside query, key and value; all other arguments; sizes that are not the usual.
CASES = {
    "plain": lambda: ({}, {}, {"groups": H}),
    "grouped": lambda: ({}, {"scale": 0.3}, {}),
    "one group": lambda: ({}, {"pattern": patterns.Causal()}, {"groups": 1}),
    "padded right": lambda: ({}, {"mask": RIGHT}, {}),
    "padded left": lambda: ({}, {"mask": LEFT, "pattern": patterns.Causal()}, {"groups": 1}),
    "mask of queries": lambda: ({}, {"mask": some(B, 1, T, 1)}, {}),
    "mask of heads": lambda: ({}, {"mask": [some(1, H, 1, S), some(1, H, 1, 1, rate=0.7)]}, {}),
    "all masks": lambda: (
        {"bias": random(B, H, T, S)},
        {"mask": [RIGHT, with_empty_rows(), some(T, S)]},
        {"groups": H},
    ),
    "nothing allowed": lambda: ({"sink": random(H)}, {"mask": np.zeros((1, 1, 1, 1), bool)}, {}),
    "sink": lambda: ({"sink": random(H)}, {"mask": with_empty_rows()}, {}),
    "sink of all keys": lambda: ({"sink": random(H) + 2}, {}, {}),
    "biases": lambda: (
        {"bias": random(H, 1, S), "more_bias": random(B, 1, T, 1)},
        {"logit_soft_cap": 2.0, "pattern": WINDOW, "offset": 4},
        {},
    ),
    "bias of one number": lambda: ({"bias": random(1, 1, 1, 1), "sink": random(H)}, {}, {}),
    "causal": lambda: ({}, {"pattern": patterns.Causal(), "offset": 14}, {}),
    "far offset": lambda: ({}, {"pattern": WINDOW, "offset": 43}, {}),
    "negative offset": lambda: ({}, {"pattern": patterns.Causal(), "offset": -9}, {}),
    "offset array": lambda: (
        {},
        {"pattern": WINDOW, "offset": keras.ops.convert_to_tensor(np.int32(6))},
        {},
    ),
    "offset of rows": lambda: (
        {},
        {"pattern": patterns.Causal() & WINDOW, "offset": integers(-3, 20, B)},
        {},
    ),
    "wide window": lambda: ({}, {"pattern": patterns.SlidingWindow(99, 99)}, {}),
    "future": lambda: ({}, {"pattern": ~patterns.Causal(), "offset": 20}, {}),
    "dilated": lambda: ({}, {"pattern": patterns.Dilated(3)}, {}),
    "strided": lambda: ({}, {"pattern": patterns.Strided(5) & patterns.Causal()}, {}),
    "prefix": lambda: ({}, {"pattern": patterns.Causal() | patterns.Prefix(7)}, {}),
    "block": lambda: ({}, {"pattern": patterns.Block(9), "offset": 5}, {}),
    "not": lambda: ({}, {"pattern": ~WINDOW & ~patterns.Dilated(2)}, {}),
    "own pattern": lambda: ({}, {"pattern": Thirds() & patterns.Causal()}, {}),
    "of a user": lambda: ({}, {"pattern": Thirds(), "mask": RIGHT}, {}),
    "segments": lambda: (
        {},
        {"segment_ids": (integers(0, 3, B, T), integers(0, 3, B, S)), "pattern": patterns.Causal()},
        {},
    ),
    "positions": lambda: (
        {},
        {
            "pattern": patterns.Causal(),
            "query_positions": integers(0, 50, B, T),
            "key_positions": integers(0, 50, S),
        },
        {},
    ),
    "alibi": lambda: (
        {},
        {"between": positions.ALiBi().bias_between(H), "pattern": patterns.Causal(), "offset": 14},
        {"groups": H},
    ),
    "alibi anywhere": lambda: (
        {},
        {
            "between": positions.ALiBi().bias_between(H),
            "query_positions": integers(0, 50, T),
            "key_positions": integers(0, 50, B, S),
        },
        {},
    ),
    "relative bias": lambda: (
        {"table": random(8, H)},
        {"between": relative_bias(), "mask": RIGHT, "offset": 5},
        {},
    ),
    "relative bias of rows": lambda: (
        {"table": random(8, H), "bias": random(1, 1, T, S)},
        {"between": relative_bias(), "offset": integers(0, 20, B), "logit_soft_cap": 3.0},
        {},
    ),
    "shaw": lambda: (
        {"relative_keys": random(1, 7, K), "relative_values": random(1, 7, V)},
        {"pattern": patterns.Causal(), "offset": 10},
        {"groups": H},
    ),
    "shaw of heads": lambda: (
        {"relative_keys": random(H, 7, K), "relative_values": random(H, 7, V)},
        {"mask": with_empty_rows()},
        {},
    ),
    "shaw of keys": lambda: (
        {"relative_keys": random(H, 5, K), "bias": random(B, 1, 1, S)},
        {"logit_soft_cap": 4.0, "offset": -4},
        {},
    ),
    "shaw of values": lambda: ({"relative_values": random(1, 9, V)}, {"mask": LEFT}, {}),
    "shaw anywhere": lambda: (
        {"relative_keys": random(H, 7, K), "relative_values": random(1, 7, V)},
        {"query_positions": integers(0, 50, B, T)},
        {},
    ),
    "more queries than keys": lambda: (
        {},
        {"pattern": patterns.Causal()},
        {"queries": 47, "keys": 11},
    ),
    "many keys": lambda: ({}, {"mask": some(B, 1, 1, 300)}, {"queries": 5, "keys": 300}),
    "one query": lambda: (
        {},
        {"pattern": WINDOW, "offset": 30},
        {"queries": 1},
    ),
    "one key": lambda: ({}, {"mask": some(B, H, T, 1)}, {"keys": 1}),
    "one of each": lambda: ({"sink": random(H)}, {}, {"queries": 1, "keys": 1, "size": 1}),
    "one feature": lambda: ({}, {"pattern": patterns.Causal()}, {"size": 1, "features": 1}),
}


def problem(name):
    arrays, rest, sizes = CASES[name]()
    return {**inputs(**sizes), **arrays}, rest


# Those that differ most from one another, and from the problems of test_blocks.py.
QUICK = (
    "nothing allowed", "biases", "mask of heads", "many keys", "far offset",
    "wide window", "one query", "one key", "one of each", "one feature", "positions",
    "offset of rows", "shaw anywhere", "more queries than keys", "relative bias of rows",
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


def test_the_problems_are_cut_as_they_are_meant_to_be():
    made = {}
    for name, blocks in BLOCKS.items():
        with blocks(), pytest.MonkeyPatch.context() as patch:
            for kind in ("of_blocks", "of_rows"):
                planner = getattr(plans, kind)

                def keep(*x, planner=planner, name=name, **y):
                    made[name] = planner(*x, **y)
                    return made[name]

                patch.setattr(plans, kind, keep)
            attended("blockwise", inputs(), {})
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


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("all masks", "bfloat16"),
        ("all masks", "float16"),
        ("all masks", "float64"),
        *(slow("shaw of heads", dtype) for dtype in ("bfloat16", "float16", "float64")),
        # No float64: the table stands for a variable of float32.
        slow("relative bias", "bfloat16"),
        slow("relative bias", "float16"),
        slow("causal", "bfloat16"),
        slow("causal", "float16"),
        slow("causal", "float64"),
    ],
)
def test_every_dtype_is_that_of_the_reference(name, dtype):
    if dtype == "float64" and BACKEND == "jax":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")
    arrays, rest = problem(name)
    expected = None
    if name == "relative bias":
        # The reference adds up the gradient of a narrow table in its dtype, blocks in float32.
        rounded = {n: _rounded(array, dtype) for n, array in arrays.items()}
        expected = answers("reference", rounded, rest)
    with BLOCKS["keys"]():
        compare("blockwise", arrays, rest, dtype, expected=expected)
        tensors = [keras.ops.cast(arrays[n], dtype) for n in ("query", "key", "value")]
        output = attend(*tensors, kernel="blockwise").output
    assert keras.backend.standardize_dtype(output.dtype) == dtype


BY_ROWS = [name for name in BLOCKS if "rows" in name]


@pytest.mark.parametrize("rows", BY_ROWS)
@pytest.mark.parametrize("name", ["all masks", "causal", "shaw of heads", "nothing allowed"])
def test_products_in_bfloat16_are_those_of_the_reference(rows, name):
    with BLOCKS[rows]():
        # Weights and their gradients are rounded too.
        compare("blockwise", *problem(name), "bfloat16", roundings=1.5)


@pytest.mark.parametrize("rows", BY_ROWS)
def test_dropout_in_bfloat16_is_that_of_float32(rows):
    arrays, rest = problem("all masks")
    rest = {**rest, "dropout": 0.4, "seed": 3}
    with BLOCKS[rows]():
        rounded = {name: _rounded(array, "bfloat16") for name, array in arrays.items()}
        expected = answers("blockwise", rounded, rest)
        compare("blockwise", arrays, rest, "bfloat16", expected=expected, roundings=1.5)


def test_gradients_in_bfloat16_where_all_values_are_alike():
    """The gradient of a score is then the small difference of large numbers."""
    query, key, value = (random(2, 60, 2, 8, seed=n) for n in range(3))
    arrays = {"query": query, "key": key, "value": _rounded(value + 30, "bfloat16")}
    with rows_of(4096):
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


@pytest.mark.slow
@on_tensorflow  # JAX compiles everywhere, and PyTorch nowhere.
@pytest.mark.parametrize(
    "name, blocks", zip(CASES, itertools.cycle(["keys", "one", "keys", "700"]), strict=False)
)
def test_xla_gives_the_same(name, blocks):
    with BLOCKS[blocks]():
        compare("blockwise", *problem(name), differentiate=by_xla)


@pytest.mark.parametrize(
    "name", ["all masks", slow("negative offset"), slow("nothing allowed"), slow("many keys")]
)
def test_queries_without_keys_are_known_and_have_zeros(name):
    arrays, rest = problem(name)
    expected = attended("reference", arrays, rest).has_keys
    shape = arrays["query"].shape
    empty = ~np.broadcast_to(keras.ops.convert_to_numpy(expected), (B, H, shape[1]))
    assert empty.any() == (name != "many keys")
    with BLOCKS["keys"]():
        found = attended("blockwise", arrays, rest)
        reached = keras.ops.convert_to_numpy(found.has_keys)
        np.testing.assert_array_equal(~np.broadcast_to(reached, empty.shape), empty)
        output = keras.ops.convert_to_numpy(found.output)
        np.testing.assert_array_equal(output[empty.transpose(0, 2, 1)], 0.0)
        gradient = answers("blockwise", arrays, rest)["query"]
    np.testing.assert_array_equal(gradient[empty.transpose(0, 2, 1)], 0.0)
    assert np.isfinite(gradient).all()


# By chance


SIDES = st.integers(0, 1)


@st.composite
def problems(draw, longest):
    """Arrays and other arguments of `answers`, with all things beside one another."""
    batch, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    heads = groups * draw(st.integers(1, 2))
    queries, keys = draw(st.integers(1, longest)), draw(st.integers(1, longest))
    arrays = inputs(batch, queries, keys, heads, groups, draw(st.sampled_from([1, 4])), 3)

    def pairs():
        whole = zip((batch, heads, queries, keys), (draw(SIDES) for _ in range(4)), strict=True)
        return [size if there else 1 for size, there in whole]

    rest = {"logit_soft_cap": draw(st.sampled_from([None, 2.0]))}
    rest["mask"] = [
        some(*pairs(), rate=draw(st.sampled_from([0.0, 0.3, 0.8])), seed=n)
        for n in range(draw(st.integers(0, 2)))
    ]
    rest["pattern"] = draw(st.one_of(st.none(), PATTERNS))
    where = draw(st.sampled_from(["from 0", "from 0", "offset", "rows", "query", "both"]))
    if where == "offset":
        rest["offset"] = draw(st.integers(-20, 50))
    elif where == "rows":
        rest["offset"] = integers(-20, 50, batch)
    elif where in ("query", "both"):
        rest["query_positions"] = integers(0, 40, batch, queries)
        if where == "both":
            rest["key_positions"] = integers(0, 40, keys)
    if draw(st.booleans()):
        arrays["bias"] = random(*pairs(), seed=5)
    if draw(st.booleans()):
        arrays["sink"] = random(heads, seed=6)
    size = 2 * draw(st.integers(0, 4)) + 1
    if draw(st.booleans()):
        shape = draw(st.sampled_from([1, heads])), size, arrays["query"].shape[3]
        arrays["relative_keys"] = random(*shape, seed=7)
    if draw(st.booleans()):
        arrays["relative_values"] = random(draw(st.sampled_from([1, heads])), size, 3, seed=8)
    if draw(st.booleans()):
        rest["between"] = positions.ALiBi().bias_between(heads)
    return arrays, rest


CUTS = st.integers(7, 20), st.integers(7, 20), st.sampled_from([100, 10**4, 10**6])


def check(case, rows, columns, elements):
    arrays, rest = case
    with blocks_of(rows, columns, elements):
        compare("blockwise", arrays, rest)


@settings(deadline=None, max_examples=EXAMPLES, derandomize=True)
@given(problems(20), *CUTS)
def test_all_things_beside_one_another_are_those_of_the_reference(case, rows, columns, elements):
    check(case, rows, columns, elements)


@pytest.mark.slow
@settings(deadline=None, max_examples=10 * EXAMPLES)
@given(problems(40), *CUTS)
def test_many_more_things_beside_one_another(case, rows, columns, elements):
    check(case, rows, columns, elements)


@pytest.mark.parametrize("groups", [H, G])
@pytest.mark.parametrize("queries, keys", [(0, 5), (5, 0), (0, 0)])
def test_lengths_of_zero(queries, keys, groups):
    arrays = inputs(queries=queries, keys=keys, groups=groups)
    for rest in ({}, {"pattern": WINDOW}, {"mask": np.ones((B, 1, 1, keys), bool)}):
        found = answers("auto", arrays, rest)
        assert found["output"].shape == (B, queries, H, V)
        for name, array in found.items():
            assert array.shape == arrays.get(name, array).shape
            np.testing.assert_array_equal(array, 0.0)
    reached = attended("auto", arrays, {"pattern": WINDOW}).has_keys
    assert not keras.ops.convert_to_numpy(reached).any()


# Lengths that are not known


@pytest.mark.slow
@on_tensorflow
@pytest.mark.parametrize("blocks", ["4096", "700", "keys"])
@pytest.mark.parametrize("name", ["all masks", "causal", "shaw", "biases", "relative bias"])
def test_unknown_lengths(name, blocks):
    import tensorflow as tf

    arrays, rest = problem(name)
    masks = [np.array(mask) for mask in rest.pop("mask", [])] if name == "all masks" else []

    def spec(array, axes, dtype):
        shape = list(array.shape)
        for axis in axes:
            if shape[axis] != 1:
                shape[axis] = None
        return tf.TensorSpec(shape, dtype)

    # Axes of the batch and of lengths.
    unknown = {"query": (0, 1), "key": (0, 1), "value": (0, 1), "bias": (0, -1, -2)}
    signature = [
        [spec(array, unknown.get(n, ()), "float32") for n, array in arrays.items()],
        [spec(mask, range(len(mask.shape)), "bool") for mask in masks],
    ]

    @tf.function(autograph=False, input_signature=signature)
    def step(tensors, masks):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            named = dict(zip(arrays, tensors, strict=True))
            given = {**rest, "mask": masks} if masks else rest
            output = attended("blockwise", named, given).output
            total = tf.reduce_sum(output**2)
        return output, tape.gradient(total, tensors, unconnected_gradients="zero")

    def check(arrays):
        output, found = step([tf.constant(x) for x in arrays.values()], masks)
        if 0 in arrays["query"].shape or 0 in arrays["key"].shape:
            assert output.shape == (*arrays["query"].shape[:3], V)
            for array in (output, *found):
                np.testing.assert_array_equal(array, 0.0)
            return
        given = {**rest, "mask": masks} if masks else rest

        def reference(*tensors):
            return attended("reference", dict(zip(arrays, tensors, strict=True)), given).output

        tensors = [tf.constant(array) for array in arrays.values()]
        np.testing.assert_allclose(output, reference(*tensors), rtol=0, atol=2e-5)
        expected = gradients(lambda *x: reference(*x) ** 2, tensors)
        for n, array, wanted in zip(arrays, found, expected, strict=True):
            error = 1e-5 * max(10.0, np.abs(wanted).max(initial=0.0))
            np.testing.assert_allclose(array, wanted, rtol=0, atol=error, err_msg=n)

    with BLOCKS[blocks]():
        check(arrays)
        # The same function, of other lengths and another batch.
        if name in ("causal", "shaw"):
            groups = arrays["key"].shape[2]
            for sizes in ((1, 70, 20), (3, 1, 5), (2, 6, 1), (2, 0, 4), (2, 4, 0), (0, 5, 6)):
                check({**arrays, **inputs(*sizes, groups=groups)})


@on_tensorflow
def test_a_batch_of_no_rows_among_unknown_sizes():
    import tensorflow as tf

    layer = keras_attention.SelfAttention(2, 4, pattern=patterns.SlidingWindow(3, 0))
    layer.build((None, None, 8))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None, None, 8))])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
        return output, tape.gradient(output, x)

    for length in (6, 1):
        output, gradient = step(tf.zeros((0, length, 8)))
        assert output.shape == gradient.shape == (0, length, 8)


@on_tensorflow
@pytest.mark.parametrize("blocks", ["one", "700", "keys"])
def test_what_a_tape_of_eager_code_keeps(blocks, monkeypatch):
    """No block of weights but where there is one, and enough for second derivatives."""
    import tensorflow as tf

    made, exp = [], keras.ops.exp

    def watched(x):
        found = exp(x)
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
            patch.setattr(keras.ops, "exp", watched)
            tape.watch(tensors)
            found = total("blockwise")
        gc.collect()
        assert len(made) >= 1
        assert blocks == "one" or not any(reference() is not None for reference in made)
        assert all(gradient is not None for gradient in tape.gradient(found, tensors))
        for one, other in zip(second("blockwise"), second("reference"), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


# Huge numbers


HUGE = {"float32": 1e30, "float16": 6e4, "bfloat16": 1e30}


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("shaw", "float32"),
        ("all masks", "float16"),
        slow("shaw", "float16"),
        slow("shaw", "bfloat16"),
        slow("all masks", "float32"),
        slow("all masks", "bfloat16"),
        *(slow(name, dtype) for name in ("plain", "causal") for dtype in HUGE),
    ],
)
def test_huge_inputs_give_finite_outputs_and_gradients_that_are_numbers(name, dtype):
    arrays, rest = problem(name)
    # Values are not: gradients are products of values and keys, which would be infinite in float32
    # by the definition too, and sums of such are no numbers.
    huge = {
        n: array if "value" in n else np.sign(array) * HUGE[dtype] for n, array in arrays.items()
    }
    with BLOCKS["keys"]():
        found = answers("blockwise", huge, rest, dtype)
    assert np.isfinite(found["output"]).all()
    assert np.abs(found["output"]).max() > 0.1
    for n, array in found.items():
        assert not np.isnan(array).any(), n


@pytest.mark.parametrize("dtype", ["float32", "float16", slow("bfloat16")])
def test_huge_values_give_finite_outputs_and_gradients(dtype):
    arrays, rest = problem("causal")
    arrays["value"] = np.sign(arrays["value"]) * HUGE[dtype]
    with BLOCKS["keys"]():
        found = answers("blockwise", arrays, rest, dtype)
    # The gradients of query and key are as large as float16 has no number for.
    for n in ("output", "value") if dtype == "float16" else found:
        assert np.isfinite(found[n]).all()
    assert np.abs(found["output"]).max() > 0.1 * HUGE[dtype]
    assert not any(np.isnan(array).any() for array in found.values())


def test_what_masked_keys_hold_changes_nothing():
    arrays, kept = inputs(), some(B, S, seed=9)
    rest = {"mask": kept[:, None, None]}
    with BLOCKS["keys"]():
        expected = answers("blockwise", arrays, rest)
        for name in ("key", "value"):
            arrays[name] = np.where(kept[..., None, None], arrays[name], np.float32(1e30))
        found = answers("blockwise", arrays, rest)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    for name in ("key", "value"):
        np.testing.assert_array_equal(found[name][~kept], 0.0)


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
            gain = keras.ops.convert_to_tensor(kept.astype("float32") / np.float32(0.6))
            # Masked weights are not shown, and have no say.
            expected = answers("reference", arrays, {**rest, "multiplier": gain})
            dropout = {"dropout": 0.4, "seed": 3}
            compare("blockwise", arrays, {**rest, **dropout}, expected=expected)


# Memory


LONG = 640
MEMORY = {
    "plain": lambda: ({}, {}),
    "causal": lambda: ({}, {"pattern": patterns.Causal(), "mask": some(1, 1, 1, LONG)}),
    "dropout": lambda: ({}, {"dropout": 0.2, "seed": 1}),
    "shaw": lambda: (
        {"relative_keys": random(1, 7, 4), "relative_values": random(1, 7, 4)},
        {},
    ),
    "bias": lambda: ({"bias": random(1, 2, 1, LONG)}, {"logit_soft_cap": 2.0, "sink": random(2)}),
    "relative bias": lambda: (
        {"table": random(8, 2)},
        {"between": relative_bias(2)},
    ),
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


@pytest.mark.slow
def test_the_kernels_own_blocks_are_small_too():
    arrays = inputs(1, 2048, 2048, 2, 2, 4, 4)
    with at_once(2**14):
        largest = largest_in_training("blockwise", arrays, {"pattern": patterns.Causal()})
    assert largest <= 2048 * 2048 / 16


# The layer and the function


def test_the_function_and_its_kernels_agree():
    arrays = inputs()
    given = {"mask": RIGHT, "pattern": "causal", "logit_soft_cap": 3.0, "sink": random(H)}
    with BLOCKS["keys"]():
        assert ops.explain(**arrays, **given).startswith("blockwise")
        found, expected = (
            keras.ops.convert_to_numpy(ops.attend(**arrays, **given, kernel=kernel))
            for kernel in ("auto", "reference")
        )
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other lengths are known")
def test_sizes_whose_product_is_beyond_32_bits():
    import tensorflow as tf

    sizes = [tf.TensorSpec((), "int32")] * 3

    @tf.function(input_signature=sizes)
    def sequences(batch, queries, keys):
        return plans.of_blocks(plans.Sizes(batch, 4, 4, queries, keys), 2**21).batch

    # 32 · 4 · 4200² is more than 2³¹.
    assert int(sequences(32, 4200, 4200)) == 1
    assert int(sequences(2, 70000, 70000)) == 1
    assert int(sequences(32, 100, 100)) == 32
    assert int(sequences(32, 0, 0)) == 32


@on_tensorflow
def test_whole_rows_are_for_onednn_and_not_for_xla(monkeypatch):
    import tensorflow as tf

    from keras_attention.backend import backend

    def in_a_program(**options):
        seen = []

        def function():
            seen.append(backend.has_fast_softmax())
            return tf.ones(1)

        tf.function(function, autograph=False, **options)()
        return seen

    monkeypatch.setattr(backend, "on_accelerator", lambda _: False)
    monkeypatch.setattr(backend, "_uses_onednn", lambda: True)
    assert backend.has_fast_softmax()
    assert in_a_program() == [True]
    assert in_a_program(jit_compile=True) == [False]
    monkeypatch.setattr(backend, "_uses_onednn", lambda: False)
    assert not backend.has_fast_softmax()


@on_tensorflow
@pytest.mark.parametrize(
    "flags, fast",
    [
        ("flags : fma avx512_bf16 avx512_vnni", True),
        ("flags : amx_bf16", True),
        ("flags : avx512_vnni", False),
        (OSError("no such file"), False),
    ],
)
def test_products_in_bfloat16_are_for_processors_that_have_them(monkeypatch, flags, fast):
    from keras_attention.backend import backend

    def read_text(path):
        if isinstance(flags, OSError):
            raise flags
        return flags

    monkeypatch.setattr(pathlib.Path, "read_text", read_text)
    assert backend.has_fast_bfloat16.__wrapped__() is fast
