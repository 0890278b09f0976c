"""The banded kernel and attention in parts against the reference; spans; which kernel is chosen."""

import re

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_attention
from keras_attention import kernels, ops, patterns, positions
from keras_attention.backend import backend
from keras_attention.kernels import banded, merge
from keras_attention.spec import PositionBias
from tests.gradients import weight_gradients
from tests.problems import (
    BACKEND,
    FEW,
    PATTERNS,
    answers,
    attend,
    attended,
    blocks_of,
    by_default,
    by_xla,
    check_dropout,
    compare,
    explain,
    inputs,
    integers,
    largest_in_training,
    on_tensorflow,
    random,
    relative_bias,
    slow,
    some,
)

B, T, H, K, V = 2, 50, 4, 8, 6
Causal, SlidingWindow, Dilated = patterns.Causal, patterns.SlidingWindow, patterns.Dilated
Strided, Block, Prefix = patterns.Strided, patterns.Block, patterns.Prefix
# JAX compiles each case anew.
EXAMPLES = {"tensorflow": 4, "jax": 2, "torch": 10}[BACKEND]


def make_short(patch):
    """Lets short sequences take the ways of long ones."""
    patch.setattr(banded, "SMALLEST", 5)
    long = merge._long
    patch.setattr(merge, "_long", lambda *given: long(*given[:-1], min(given[-1], 20)))


@pytest.fixture
def short(monkeypatch):
    make_short(monkeypatch)


def segments(batch=B, queries=T, keys=T):
    """Numbers of a few runs, for all rows of queries and for one of keys."""
    runs = np.arange(max(queries, keys)) // 9 % 2
    return tuple(
        keras.ops.convert_to_tensor(np.tile(runs[:n], (rows, 1)).astype("int32"))
        for rows, n in ((batch, queries), (1, keys))
    )


def alibi():
    return positions.ALiBi().bias_between(H)


def fold_masks():
    return [some(B, 1, 1, T), some(1, 1, T, 1, rate=0.8), some(1, H, 1, T, rate=0.8)]


def tables(heads=H):
    return {"relative_keys": random(heads, 7, K), "relative_values": random(1, 7, V)}


# Name: arrays beside query, key and value; all other arguments; sizes that are not the usual.
CASES = {
    "window": lambda: ({}, {"pattern": SlidingWindow(3, 5)}, {"groups": H}),
    "window of itself": lambda: ({}, {"pattern": SlidingWindow(0, 0)}, {}),
    "causal window": lambda: (
        {"bias": random(B, H, 1, T), "sink": random(H)},
        {"pattern": SlidingWindow(3, 5) & Causal(), "mask": fold_masks()},
        {},
    ),
    "causal window of one group": lambda: ({}, {"pattern": SlidingWindow(4, 0)}, {"groups": 1}),
    "few queries": lambda: (
        {},
        {"pattern": SlidingWindow(2, 9), "offset": 13, "segment_ids": segments(B, 43, T)},
        {"queries": 43},
    ),
    "few keys": lambda: (
        {"bias": random(1, 1, T, 1)},
        {"pattern": SlidingWindow(2, 9), "offset": -5},
        {"keys": 39},
    ),
    "many keys": lambda: ({}, {"pattern": SlidingWindow(2, 3), "offset": 70}, {"keys": 90}),
    "beyond the keys": lambda: (
        {"sink": random(H)},
        {"pattern": SlidingWindow(2, 3), "offset": 100},
        {},
    ),
    "nothing allowed": lambda: (
        {},
        {"pattern": SlidingWindow(2, 3), "mask": np.zeros((B, 1, 1, 1), bool)},
        {},
    ),
    "few queries of many keys": lambda: (
        {"bias": random(B, H, 1, 90)},
        {"pattern": SlidingWindow(20, 0), "offset": 80, "mask": some(B, 1, 1, 90)},
        {"queries": 2, "keys": 90},
    ),
    "biases of heads": lambda: (
        {"bias": random(B, H, 1, 1), "more_bias": random(1, H, T, 1)},
        {"pattern": SlidingWindow(6, 1), "logit_soft_cap": 2.0, "mask": some(B, H, 1, 1)},
        {},
    ),
    "block": lambda: ({}, {"pattern": Block(7), "between": alibi()}, {}),
    "block with a table": lambda: (
        {"table": random(8, H)},
        {"pattern": Block(7) & Causal(), "between": relative_bias()},
        {},
    ),
    "alibi": lambda: ({}, {"pattern": SlidingWindow(5, 0), "between": alibi(), "offset": 3}, {}),
    "relative bias": lambda: (
        {"table": random(8, H)},
        {"pattern": SlidingWindow(5, 2), "between": relative_bias(), "mask": some(B, 1, 1, T)},
        {},
    ),
    "not by distance": lambda: (
        {},
        {
            "pattern": SlidingWindow(4, 2),
            "between": PositionBias(
                lambda i, j: 0.1 * keras.ops.cast(keras.ops.mod(i * j, 7), "float32")
            ),
        },
        {},
    ),
    "dilated": lambda: ({}, {"pattern": Dilated(3), "between": alibi()}, {}),
    "dilated causal": lambda: (
        {"table": random(8, H), "bias": random(1, 1, 1, T), "sink": random(H)},
        {"pattern": Dilated(4) & Causal(), "between": relative_bias(), "segment_ids": segments()},
        {},
    ),
    "dilated window": lambda: (
        {},
        {
            "pattern": Dilated(3) & SlidingWindow(6, 3),
            "mask": fold_masks(),
            "segment_ids": segments(),
        },
        {},
    ),
    "strided": lambda: ({"bias": random(B, 1, 1, T)}, {"pattern": Strided(5)}, {}),
    "strided causal": lambda: (
        {"sink": random(H)},
        {"pattern": Strided(5) & Causal(), "mask": some(B, 1, 1, T)},
        {},
    ),
    "shaw in a window": lambda: (tables(), {"pattern": SlidingWindow(2, 2)}, {}),
    "shaw": lambda: (tables(), {"mask": some(B, 1, 1, T)}, {"groups": H}),
    "shaw causal": lambda: (tables(1), {"pattern": Causal(), "offset": 5}, {"groups": H}),
    "shaw prefix": lambda: (
        {**tables(), "sink": random(H)},
        {"pattern": Prefix(10) | Causal()},
        {"keys": 41, "groups": H},
    ),
    "shaw wide": lambda: (tables(), {"pattern": SlidingWindow(9, 2), "offset": 5}, {}),
}


def banded_problem(name):
    arrays, rest, sizes = CASES[name]()
    return {**inputs(**{"queries": T, "keys": T, **sizes}), **arrays}, rest


# Those of the rest differ from one of these, or of test_blocks.py, in little.
QUICK = (
    "causal window", "window of itself", "few queries", "nothing allowed", "few keys", "many keys",
    "few queries of many keys", "beyond the keys", "biases of heads", "dilated causal",
    "block with a table", "relative bias", "strided causal", "not by distance", "dilated window",
    "shaw prefix",
)  # fmt: skip


@pytest.mark.parametrize("name", by_default(QUICK, CASES))
def test_every_problem_is_that_of_the_reference(short, name):
    arrays, rest = banded_problem(name)
    expected = compare("banded", arrays, rest)
    assert name in ("beyond the keys", "nothing allowed") or np.abs(expected["output"]).max() > 0.1


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
    with pytest.MonkeyPatch.context() as patch:
        make_short(patch)
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
    reached = [
        keras.ops.convert_to_numpy(attended(kernel, arrays, rest).has_keys)
        for kernel in ("banded", "reference")
    ]
    empty = ~np.broadcast_to(reached[1], (B, H, T))
    np.testing.assert_array_equal(~np.broadcast_to(reached[0], empty.shape), empty)
    assert empty.any() and not empty.all()
    found = answers("banded", arrays, rest)
    for name in ("output", "query"):
        np.testing.assert_array_equal(found[name][empty.transpose(0, 2, 1)], 0.0)


# Spans and parts


QUERIES, KEYS = np.arange(-12, 30), np.arange(-5, 40)


def asked(pattern, i=QUERIES, j=KEYS):
    return keras.ops.convert_to_numpy(pattern(i.astype("int32"), j.astype("int32")))


EVERY = [
    Causal(), SlidingWindow(3, 1), SlidingWindow(0, 0), Dilated(1), Dilated(4), Strided(1),
    Strided(5), Prefix(3), Block(1), Block(6), ~Causal(), ~Dilated(3), Causal() & Strided(3),
    Strided(3) & Strided(4), Dilated(4) & Dilated(6), Dilated(4) | Dilated(6), Causal() | Prefix(2),
    SlidingWindow(3, 9) & SlidingWindow(7, 2), SlidingWindow(3, 9) | SlidingWindow(7, 2),
    SlidingWindow(3, 9) | Causal(), Block(4) & Dilated(2), ~~Block(3), ~(Causal() & Prefix(2)),
]  # fmt: skip


def check_span(pattern):
    span, allowed = pattern.span(), asked(pattern)
    distance = KEYS[None] - QUERIES[:, None]
    seen = distance[allowed]
    assert span.left is None or (seen >= -span.left).all(), (pattern, span)
    assert span.right is None or (seen <= span.right).all(), (pattern, span)
    assert (seen % span.rate == 0).all(), (pattern, span)
    if span.by_distance:
        np.testing.assert_array_equal(asked(pattern, QUERIES + 7, KEYS + 7), allowed)
    together = np.zeros(allowed.shape, int)
    for part in pattern.parts():
        together += asked(part)
    np.testing.assert_array_equal(together, allowed, err_msg=repr(pattern))


@pytest.mark.parametrize("pattern", EVERY, ids=map(repr, EVERY))
def test_spans_and_parts_of_every_pattern_are_true(pattern):
    check_span(pattern)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(PATTERNS)
def test_spans_and_parts_of_combinations_are_true(pattern):
    check_span(pattern)


def test_spans_say_what_is_known():
    assert Causal().span() == patterns.Span(None, 0, 1, True, exact=True)
    assert (Causal() & SlidingWindow(4, 2)).span() == patterns.Span(4, 0, 1, True)
    assert (Dilated(4) & Dilated(6)).span().rate == 12
    assert (Dilated(4) | Dilated(6)).span().rate == 2
    assert Block(5).span() == patterns.Span(4, 4, 1, False)
    assert Prefix(3).span() == patterns.Span()
    assert len(Strided(3).parts()) == 2 and len((Strided(3) & Strided(4)).parts()) == 4


# The choice


def chosen(length=600, keys=None, size=4, **given):
    query = keras.ops.zeros((1, length, 2, size))
    key = keras.ops.zeros((1, keys or length, 2, size))
    return ops.explain(query, key, key, **given)


FULL = np.ones((600, 600), bool)
CHOICES = [
    ({}, "blockwise: no more than a tile .*no window and no rate"),
    ({"pattern": "causal"}, "blockwise: .*no window and no rate"),
    ({"pattern": ~SlidingWindow(2, 2)}, "blockwise: .*no window and no rate"),
    ({"pattern": SlidingWindow(16, 0)}, "banded: the pattern lets a query see few keys"),
    ({"pattern": SlidingWindow(16, 0), "offset": 5}, "banded"),
    ({"pattern": Causal() & SlidingWindow(16, 99)}, "banded"),
    ({"pattern": Block(32)}, "banded"),
    ({"pattern": SlidingWindow(16, 0), "mask": np.ones((1, 1, 1, 600), bool)}, "banded"),
    ({"pattern": SlidingWindow(300, 0)}, "blockwise: .*as wide as the sequence"),
    ({"pattern": SlidingWindow(16, 0), "length": 200}, "blockwise: .*as wide as the sequence"),
    ({"pattern": SlidingWindow(16, 0), "mask": FULL}, "blockwise: .*has all pairs"),
    ({"pattern": SlidingWindow(16, 0), "bias": np.zeros((1, 1, 600, 600), "float32")}, "blockwise"),
    ({"pattern": SlidingWindow(9, 0), "query_positions": np.arange(600)}, "blockwise: .*consec"),
    ({"pattern": SlidingWindow(9, 0), "offset": np.array([3])}, "blockwise: .*consecutive"),
    ({"pattern": Dilated(4)}, "banded"),
    ({"pattern": Dilated(4) & Causal()}, "banded"),
    ({"pattern": Dilated(4), "keys": 500}, "blockwise: .*not one sequence"),
    ({"pattern": Dilated(4), "offset": 1}, "blockwise: .*not one sequence"),
    ({"pattern": Dilated(4) & Block(100)}, "blockwise: .*more than the distance"),
    ({"pattern": Dilated(200)}, "blockwise: .*hardly longer than the rate"),
    ({"pattern": Strided(8)}, "banded"),
    ({"pattern": Strided(8) & Causal()}, "banded"),
    (
        {"pattern": SlidingWindow(16, 0), "return_attention_scores": True},
        "reference: `return_attention_scores`",
    ),
    ({"pattern": SlidingWindow(16, 0), "normalization": "sigmoid"}, "reference: the normaliz"),
    ({"pattern": SlidingWindow(16, 0), "score": "cosine"}, "(banded|reference)"),
]


@pytest.mark.parametrize("given, expected", CHOICES)
def test_the_choice(monkeypatch, given, expected):
    monkeypatch.setattr(backend, "FUSED_READS", None)
    given = dict(given)
    if "query_positions" in given:
        given["query_positions"] = given["query_positions"].astype("int32")
    found = chosen(**given)
    assert re.match(expected, found), found


def test_the_choice_for_embeddings_of_distances():
    def chosen(length):
        query = keras.ops.zeros((1, length, 2, 4))
        return explain(query, query, query, relative_keys=keras.ops.zeros((1, 9, 4)))

    assert chosen(1100)[0] == "banded" and chosen(900)[0] == "blockwise"


@pytest.mark.parametrize(
    "given, why",
    [({"pattern": Causal()}, "no window"), ({"pattern": SlidingWindow(9, 9)}, "as wide")],
)
def test_what_is_not_for_it_is_refused(given, why):
    with pytest.raises(ValueError, match=f"'banded' cannot do this: .*{why}"):
        attend(
            **{n: keras.ops.convert_to_tensor(x) for n, x in inputs(1, 20, 20).items()},
            **given,
            kernel="banded",
        )


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
