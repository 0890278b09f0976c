"""Every kernel against the reference, in one tile and in many: outputs, gradients and memory."""

import contextlib
import gc
import weakref

import keras
import numpy as np
import pytest

from keras_attention import patterns
from keras_attention.backend import backend
from keras_attention.kernels import KERNELS
from keras_attention.kernels.tiles import strategies
from keras_attention.spec import PositionBias
from tests.arrays import close, numpy
from tests.kernels.cases import (
    CASES,
    ENTMAX,
    LEARNED,
    SPARSEMAX,
    fused_on_cpus,
    lengths,
    problem,
    short_sequences,
)
from tests.problems import (
    FEW,
    B,
    G,
    H,
    S,
    T,
    answers,
    at_once,
    attended,
    blocks_of,
    by_xla,
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
    weights_shown,
)

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
        "one of rows": lambda: rows_of(2**20),
        "rows": lambda: rows_of(700),
        "rows of heads": lambda: rows_of(4096),
    }
BY_ROWS = [name for name in BLOCKS if "rows" in name]


def way(kernel, arrays, rest):
    """The context for a problem: `blockwise` gets tiles of few scores."""
    if kernel != "blockwise":
        return contextlib.nullcontext()
    # A normalization of rows, which has no blocks of keys, gets fewer scores instead.
    if "normalization" in rest:
        return BLOCKS["700"]()
    # Bands are longer, and would have many tiles.
    return BLOCKS["keys"]() if arrays["query"].shape[1] <= S else blocks_of(64, 64)


PROBLEMS = [(kernel, name) for kernel, cases in CASES.items() for name in cases]
if FEW:
    # A third of those of tiles.
    PROBLEMS = [pair for n, pair in enumerate(PROBLEMS) if pair[0] == "fused" or n % 3 == 0]


def seen(kernel, arrays, rest):
    """The log-sum-exps of queries, and which of them have keys."""
    batch, queries, heads, _ = arrays["query"].shape
    found = attended(kernel, arrays, {**rest, "return_lse": True})
    has_keys = True if found.has_keys is None else numpy(found.has_keys)
    return numpy(found.lse), np.broadcast_to(has_keys, (batch, heads, queries))


@pytest.mark.parametrize("kernel, name", PROBLEMS)
def test_each_kernel_gives_the_reference_or_refuses(kernel, name, monkeypatch):
    arrays, rest = problem(kernel, name)
    expected, computed = answers("reference", arrays, rest), []
    assert any(x in name for x in ("nothing", "no keys")) or np.abs(expected["output"]).max() > 0.1
    fused_on_cpus(monkeypatch)
    for each in [one.name for one in KERNELS if one.name not in ("few_scores", "reference")]:
        with short_sequences(), way(each, arrays, rest):
            try:
                compare(each, arrays, rest, expected=expected)
                if not FEW and "normalization" not in rest:
                    found, other = (seen(k, arrays, rest) for k in (each, "reference"))
                    close(found[0], other[0], 1e-4)
                    np.testing.assert_array_equal(found[1], other[1])
            except ValueError as error:
                assert "cannot do this" in str(error)
            else:
                computed.append(each)
    assert "blockwise" in computed
    # On JAX, cuDNN takes no single query and no sink, and a bias may need a gradient at any time.
    refused = "fixed" in rest or "sink" in arrays or arrays["query"].shape[1] == 1
    by_lengths, by_masks = (form in backend.FUSED_READS for form in ("lengths", "masks"))
    there = by_masks and not (by_lengths and refused)
    assert kernel in computed or (kernel == "fused" and not there)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES["blockwise"])
def test_all_ways_to_cut_give_the_reference(name):
    arrays, rest = problem("blockwise", name)
    expected = answers("reference", arrays, rest)
    for blocks in BLOCKS.values():
        with blocks():
            compare("blockwise", arrays, rest, expected=expected)


def plan_of(arrays):
    """The `Plan` of a problem."""
    spec, *heads = given(**{name: keras.ops.convert_to_tensor(x) for name, x in arrays.items()})
    sizes = strategies.Sizes.of(*heads[:2])
    return strategies.plan(strategies.choose(spec, *heads, sizes), spec, sizes)


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
    if BY_ROWS:
        assert made["rows"].chunks > 1 and made["rows"].query_blocks > 1
        assert made["rows of heads"].chunks > 1
        assert all(made[name].keys == S + 3 for name in BY_ROWS)


# Half precision


def rounded(array, dtype="bfloat16"):
    """A float32 array of what `dtype` has room for."""
    return numpy(keras.ops.cast(keras.ops.cast(array, dtype), "float32"))


IN_ROWS = {"one of rows": "biases", "rows": "shaw anywhere", "rows of heads": "all masks"}


@pytest.mark.parametrize("rows", BY_ROWS)
def test_products_in_bfloat16_are_those_of_the_reference(rows):
    with BLOCKS[rows]():
        # Weights and their gradients are rounded too.
        problem_of_rows = problem("blockwise", IN_ROWS[rows])
        compare("blockwise", *problem_of_rows, "bfloat16", roundings=1.5)


def multiply_widely(monkeypatch):
    """Products of half precision in float32, as on an accelerator: `torch.bmm` has them there."""
    monkeypatch.setattr(backend, "has_wide_products", lambda _: True)
    if keras.config.backend() == "torch":
        import torch

        def wide(first, second, out_dtype, product=torch.bmm):
            assert first.dtype == second.dtype in (torch.bfloat16, torch.float16)
            return product(first.to(out_dtype), second.to(out_dtype))

        monkeypatch.setattr(torch, "bmm", wide)


DROPOUT = {"dropout": 0.3, "seed": 3}
HALF = [
    ("fused", "causal, padded keys", {}, "bfloat16", 2**20),
    ("fused", "all keys", DROPOUT, "float16", 2**12),
    ("blockwise", "biases", {"sink": random(H)}, "float16", 2**12),
    ("blockwise", "shaw anywhere", {}, "bfloat16", 2**20),
    ("banded", "causal window", {}, "bfloat16", 2**12),
    ("blockwise", "sparsemax", {}, "bfloat16", 2**20),
    # Of a normalization, a scale may not be a power of 2 that products are multiplied by.
    ("blockwise", "entmax, keys", {"scale": -1.0}, "bfloat16", 2**12),
    ("blockwise", "entmax, keys", {"scale": 4.0}, "bfloat16", 2**12),
]


@pytest.mark.parametrize("kernel, name, more, dtype, scores", HALF)
def test_tiles_of_half_precision_are_the_definition(kernel, name, more, dtype, scores, monkeypatch):
    arrays, rest = problem(kernel, name)
    rest = {"scale": 0.3, **rest, **more}
    exact = {n: rounded(array, dtype) for n, array in arrays.items()}
    kernel = "blockwise" if kernel == "fused" else kernel
    with short_sequences(), at_once(scores):
        # Dropout draws by tiles.
        expected = answers(kernel if "dropout" in rest else "reference", exact, rest)
        multiply_widely(monkeypatch)
        compare(kernel, arrays, rest, dtype, by_xla, expected, roundings=2)


ALIKE = [
    (None, contextlib.nullcontext),
    (None, BLOCKS["keys"]),
    *((None, BLOCKS[rows]) for rows in BY_ROWS[2:]),
    (SPARSEMAX, BLOCKS["700"]),
    (ENTMAX, BLOCKS["700"]),
]


@pytest.mark.parametrize("normalization, context", ALIKE)
def test_gradients_in_bfloat16_where_all_values_are_alike(normalization, context, monkeypatch):
    """The gradient of a score is then the small difference of large numbers."""
    monkeypatch.setattr(backend, "has_fast_bfloat16", lambda: True)
    arrays = inputs(2, 60, 60, 2, 2, 8, 8)
    arrays["value"] += 30
    arrays = {name: rounded(array) for name, array in arrays.items()}
    with context():
        found = answers("blockwise", arrays, {"normalization": normalization}, "bfloat16")
    expected = answers("reference", arrays, {"normalization": normalization})
    for name in ("query", "key"):
        error = np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max()
        assert error < 2**-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bias", "table"])
def test_narrow_gradients_of_many_blocks_are_added_up_in_float32(kind):
    """Beyond 256 times as much, bfloat16 has no number that is one more."""
    arrays = inputs(1, 400, 9, 1, 1, 4, 3) | {"query": np.ones((1, 400, 1, 4), "float32")}
    arrays[kind] = random(9, seed=5) if kind == "table" else random(1, 1, 1, 9, seed=5)
    rest = {}
    if kind == "table":
        rest["between"] = PositionBias(lambda i, j, t: keras.ops.take(t, j, axis=0)[None])
    expected = answers("blockwise", arrays, rest)[kind]
    with blocks_of(1, 9):
        found = answers("blockwise", arrays, rest, "bfloat16")[kind]
    # As many equal numbers: each rounded three times at most, and its inputs before.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2**-6 * np.abs(expected).max())


# Dropout


@pytest.mark.parametrize(
    "rate, blocks",
    [
        (0.5, "keys"),
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


DROPPED = [
    ("fused", "all keys", "reference"),
    ("blockwise", "sigmoid", "blockwise"),
    ("blockwise", "entmax15", "blockwise"),
    ("banded", "strided causal", "banded"),
]


@pytest.mark.parametrize("section, name, kernel", DROPPED[::2] if FEW else DROPPED)
def test_dropout_beside_all_else(section, name, kernel):
    arrays, rest = problem(section, name)
    with short_sequences(), way(kernel, arrays, rest):
        kept, there = check_dropout(kernel, arrays, rest, 0.4)
    # Rows see as many keys at the same distances, and still are not alike.
    assert len({kept[index][there[index]].tobytes() for index in np.ndindex(kept.shape[:3])}) > 10


@pytest.mark.slow
def test_dropout_beside_embeddings_of_values():
    """They would hide the weights; the set is the same with them."""
    arrays, rest = problem("blockwise", "shaw anywhere")
    values, arrays["query"] = arrays.pop("relative_values"), 0.3 * arrays["query"]
    dropout = {"dropout": 0.4, "seed": 3}
    with BLOCKS["keys"]():
        shown = weights_shown("blockwise", arrays, rest, **dropout)
        multiplier = (shown > 0).astype("float32") / np.float32(0.6)
        arrays["relative_values"] = values
        expected = answers("reference", arrays, {**rest, "multiplier": multiplier})
        compare("blockwise", arrays, {**rest, **dropout}, expected=expected)


# Memory


LONG = 640
MEMORY = {
    "plain": {},
    "causal": {"pattern": patterns.Causal(), "mask": some(1, 1, 1, LONG)},
    "dropout": DROPOUT,
    "shaw": {"relative_keys": random(1, 7, 4), "relative_values": random(1, 7, 4)},
    "bias": {"bias": random(1, 2, 1, LONG), "logit_soft_cap": 2.0, "sink": random(2)},
    "relative bias": {"table": random(8, 2), "between": relative_bias(2)},
}


@pytest.mark.parametrize("name", ["plain", *(slow(name) for name in MEMORY if name != "plain")])
def test_scores_are_never_whole_in_training(name):
    more = {n: x for n, x in MEMORY[name].items() if n in LEARNED}
    rest = {n: x for n, x in MEMORY[name].items() if n not in LEARNED}
    arrays = {**inputs(1, LONG, LONG, 2, 1, 4, 4), **more}
    with blocks_of(40, 64):
        largest = largest_in_training("blockwise", arrays, rest)
    assert 40 * 64 <= largest <= LONG * LONG / 16
    if name == "plain":
        assert largest_in_training("reference", arrays, rest) >= 2 * LONG * LONG


@pytest.mark.slow
def test_the_largest_array_of_a_window_grows_with_the_length():
    window = {"pattern": patterns.SlidingWindow(15, 0)}
    first, second = (
        largest_in_training("banded", inputs(1, length, length, 2, 1, 4, 4), window)
        for length in (640, 1280)
    )
    assert 640 < first <= 640 * 640 / 2 and second <= 2.1 * first


@pytest.mark.parametrize("given", [{}, {"query_positions": integers(0, 64, 64)}], ids=["", "moved"])
def test_no_array_has_features_for_every_pair(given):
    """Of embeddings of distances."""
    length, size = 64, 40
    arrays = inputs(1, length, length, 2, 2, size, size)
    arrays |= {f"relative_{name}": random(1, 9, size) for name in ("keys", "values")}
    largest = largest_in_training("auto", arrays, given)
    assert length * length <= largest < length * length * size / 4


# TensorFlow


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
        named, given = dict(zip(arrays, tensors, strict=True)), {"mask": lengths(S, 20)}
        return tf.reduce_sum(attended(kernel, named, given).output ** 2)

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
