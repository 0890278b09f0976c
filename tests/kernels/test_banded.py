"""The kernel of windows and rates against the reference: outputs and gradients."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_attention
from keras_attention import kernels
from keras_attention.patterns import Block, Causal, Dilated, SlidingWindow, Strided
from tests.gradients import weight_gradients
from tests.kernels.banded_problems import (
    CASES,
    B,
    H,
    T,
    alibi,
    banded_problem,
    segments,
    short_sequences,
    tables,
)
from tests.problems import (
    BACKEND,
    FEW,
    PATTERNS,
    answers,
    attended,
    blocks_of,
    by_default,
    by_xla,
    check_dropout,
    compare,
    inputs,
    integers,
    largest_in_training,
    on_tensorflow,
    random,
    slow,
    some,
)

# JAX compiles each case anew.
EXAMPLES = {"tensorflow": 4, "jax": 2, "torch": 10}[BACKEND]


@pytest.fixture
def short():
    with short_sequences():
        yield


# Those of the rest differ from one of these, or of test_blocks.py, in little.
QUICK = (
    "causal window", "window of itself", "few queries", "nothing allowed", "few keys", "many keys",
    "few queries of many keys", "beyond the keys", "before the keys", "biases of heads",
    "dilated causal", "block with a table", "relative bias", "strided causal", "not by distance",
    "dilated window", "shaw prefix", "axial", "neighborhood", "grid window",
)  # fmt: skip


@pytest.mark.parametrize("name", by_default(QUICK, CASES))
def test_every_problem_is_that_of_the_reference(short, name):
    arrays, rest = banded_problem(name)
    expected = compare("banded", arrays, rest)
    nothing = name in ("beyond the keys", "before the keys", "nothing allowed")
    assert nothing or np.abs(expected["output"]).max() > 0.1


@pytest.mark.parametrize(
    "name, rows, columns",
    [
        ("few keys", 9, 7),
        slow("causal window", 3, 4),
        slow("dilated causal", 3, 4),
        slow("strided", 5, 4),
        slow("shaw", 25, 17),
    ],
)
def test_problems_in_many_blocks_are_those_of_the_reference(short, name, rows, columns):
    with blocks_of(rows, columns):
        compare("banded", *banded_problem(name))


@pytest.mark.slow
@on_tensorflow  # JAX compiles everywhere, and PyTorch nowhere.
@pytest.mark.parametrize("name", ["causal window", "few keys", "dilated causal", "strided", "shaw"])
def test_xla_gives_the_same(short, name):
    compare("banded", *banded_problem(name), differentiate=by_xla)


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("causal window", "bfloat16"),
        ("causal window", "float16"),
        ("causal window", "float64"),
        *(
            slow(name, dtype)
            for name in ("strided causal", "shaw")
            for dtype in ("bfloat16", "float16", "float64")
        ),
    ],
)
def test_every_dtype_is_that_of_the_reference(short, name, dtype):
    if BACKEND == "jax" and dtype == "float64":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")
    compare("banded", *banded_problem(name), dtype)


@pytest.mark.parametrize("pattern", [SlidingWindow(200, 7), Strided(9), Dilated(2) & Causal()])
def test_long_sequences_need_no_help(pattern):
    arrays = inputs(1, 701, 701, 1, 1, 4, 4)
    compare("banded", arrays, {"pattern": pattern})


WAYS = (
    st.one_of(st.integers(0, 3), st.integers(20, 60)),
    st.one_of(st.integers(0, 3), st.integers(20, 60)),
    PATTERNS,
    st.integers(-30, 40),
    st.lists(st.sampled_from(["mask", "bias", "sink", "shaw", "alibi", "segments"]), unique=True),
)


def check(queries, keys, pattern, offset, more):
    same = offset < 0
    keys, offset = (queries, 0) if same else (keys, offset)
    arrays, rest = inputs(B, queries, keys, groups=H), {"pattern": pattern, "offset": offset}
    if "mask" in more:
        rest["mask"] = some(B, 1, 1, keys)
    if "bias" in more:
        arrays["bias"] = random(1, H, queries, 1)
    if "sink" in more:
        arrays["sink"] = random(H)
    if "shaw" in more:
        arrays.update(tables())
    if "alibi" in more:
        rest["between"] = alibi()
    if "segments" in more:
        rest["segment_ids"] = segments(B, queries, keys)
    with short_sequences():
        compare("auto", arrays, rest)


@settings(deadline=None, max_examples=EXAMPLES, derandomize=True)
@given(*WAYS)
def test_whatever_is_chosen_is_the_reference(queries, keys, pattern, offset, more):
    check(queries, keys, pattern, offset, more)


@pytest.mark.slow
@settings(deadline=None, max_examples=10 * EXAMPLES)
@given(*WAYS)
def test_whatever_is_chosen_is_the_reference_in_many_more_cases(
    queries, keys, pattern, offset, more
):
    check(queries, keys, pattern, offset, more)


@pytest.mark.parametrize("queries, keys", [(1, 1), (0, 30), (30, 0), (1, 30), (30, 1), (20, 20)])
def test_short_sequences(queries, keys):
    """No bands: a window or a rate is wider than the sequence, or there is nothing to see."""
    for pattern in (SlidingWindow(30, 30), Dilated(40), Strided(40))[: 1 if FEW else 3]:
        compare("auto", inputs(B, queries, keys, H, H), {"pattern": pattern})


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


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("window", "float32"),
        ("strided", "float16"),
        ("strided", "float64"),
        slow("window", "float16"),
        slow("strided", "float32"),
        slow("dilated", "bfloat16"),
    ],
)
def test_huge_inputs_give_finite_outputs_and_gradients_that_are_numbers(short, name, dtype):
    if BACKEND == "jax" and dtype == "float64":
        pytest.skip("JAX has float64 only after its x64 mode was switched on for the process.")
    huge = {"float16": 6e4}.get(dtype, 1e30)
    arrays, rest = banded_problem(name)
    # Values are not: gradients are products of values and keys, which would be infinite in float32
    # by the definition too, and sums of such are no numbers.
    arrays = {n: x if n == "value" else np.sign(x) * huge for n, x in arrays.items()}
    found = answers("banded", arrays, rest, dtype)
    assert np.isfinite(found["output"]).all()
    assert np.abs(found["output"]).max() > 0.1
    assert not any(np.isnan(array).any() for array in found.values())


def test_queries_that_no_part_has_a_key_for(short):
    arrays, rest = banded_problem("strided")
    mask = some(B, 1, 1, T)
    mask[1] = False
    found = compare("banded", arrays, {**rest, "mask": mask})
    np.testing.assert_array_equal(found["output"][1], 0.0)


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


LAYERS = {
    "window": (SlidingWindow(4, 0), None, "banded"),
    "block": (Block(6), "alibi", "banded"),
    "strided": (Strided(5), "relative_bias", "banded"),
    "dilated": (Dilated(3) & Causal(), "rotary", "banded"),
    "causal": (Causal(), "alibi", "blockwise"),
}


@pytest.mark.parametrize("name", ["strided", "dilated", *map(slow, ("window", "block", "causal"))])
def test_a_layer_gives_what_it_gives_with_scores(short, monkeypatch, name):
    pattern, position, kernel = LAYERS[name]
    ran = []
    for kernel_ in kernels.KERNELS:
        name, run = kernel_.name, kernel_.module.run
        monkeypatch.setattr(
            kernel_.module, "run", lambda *given, n=name, run=run: ran.append(n) or run(*given)
        )
    layer = keras_attention.MultiHeadAttention(
        4, 4, pattern=pattern, position=position, num_key_value_heads=2, use_sink=True
    )
    x = random(B, T, 8)
    mask = some(B, T, rate=0.8)
    layer.build(x.shape, x.shape)
    for seed, variable in enumerate(layer.trainable_variables):
        variable.assign(random(*variable.shape, seed=seed) / 2)
    found, expected = (
        keras.ops.convert_to_numpy(output)
        for output in (
            layer(x, x, value_mask=mask),
            layer(x, x, value_mask=mask, return_attention_scores=True)[0],
        )
    )
    assert ran == [kernel, "reference"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_gradients_of_a_layer_are_those_with_scores(short):
    layer = keras_attention.MultiHeadAttention(4, 4, pattern=Strided(5), position="relative_bias")
    x, upstream = random(B, T, 8), keras.ops.convert_to_tensor(random(B, T, 8, seed=1))
    layer.build(x.shape, x.shape)

    def of(**more):
        def function(x):
            answer = layer(x, x, **more)
            return (answer[0] if more else answer) * upstream

        weights, arrays = weight_gradients(layer, function, [x])
        return [*weights, *arrays]

    for found, expected in zip(of(), of(return_attention_scores=True), strict=True):
        error = 2e-5 * max(1, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=error)


def test_a_window_over_positions_that_are_anywhere_is_no_band(short):
    arrays = inputs(B, T, T)
    rest = {"pattern": SlidingWindow(3, 3), "key_positions": integers(0, 50, T)}
    with pytest.raises(ValueError, match="not consecutive"):
        answers("banded", arrays, rest)
    compare("auto", arrays, rest)
