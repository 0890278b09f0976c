"""The backend's fused kernel against the reference, and where it is chosen."""

import re
import sys

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import patterns
from keras_attention.backend import backend
from keras_attention.kernels import fused
from keras_attention.spec import PositionBias
from tests import problems
from tests.arrays import random
from tests.gradients import gradients
from tests.kernels.small_blocks import (
    EMPTY,
    SEGMENTS,
    SHAW,
    B,
    H,
    K,
    S,
    T,
    check,
    distance,
    some,
    tensor,
)
from tests.problems import explain

FUSED = {
    "all keys": (4, {}),
    "causal": (2, {"pattern": patterns.Causal()}),
    "causal, from 5 on": (2, {"pattern": patterns.Causal(), "offset": 5}),
    "padding": (1, {"mask": some(B, 1, 1, S)}),
    "padded queries": (4, {"mask": [some(B, 1, T, 1), some(B, 1, 1, S)]}),
    "causal, padded queries": (4, {"mask": some(B, 1, T, 1), "pattern": patterns.Causal()}),
    "causal, padded keys": (4, {"mask": some(B, 1, 1, S), "pattern": patterns.Causal()}),
    "causal by other positions": (
        4,
        {"pattern": patterns.Causal(), "key_positions": np.arange(S, dtype="int32")[::-1].copy()},
    ),
    "rows without keys": (4, {"mask": [EMPTY, some(1, 1, T, 1)]}),
    "segments": (2, {"segment_ids": SEGMENTS, "pattern": ~patterns.Causal()}),
    "a bias": (4, {"bias": random(1, H, T, S)}),
    "a bias of keys, causal": (2, {"bias": random(B, 1, 1, S), "pattern": patterns.Causal()}),
    "a bias of queries": (2, {"bias": random(B, H, T, 1), "mask": some(B, 1, 1, S)}),
    "a huge bias, rows without keys": (
        2,
        {"bias": np.where(some(1, H, T, S), random(1, H, T, S), -np.inf), "mask": EMPTY},
    ),
    "a bias of positions": (4, {"bias": distance}),
    "a bias of positions, causal, from 5 on": (
        2,
        {"bias": distance, "pattern": patterns.Causal(), "offset": 5},
    ),
    "a bias of other positions": (
        4,
        {"bias": distance, "key_positions": random(B, S).argsort(axis=1).astype("int32")},
    ),
    "a bias of positions by heads, and another": (
        2,
        {
            "bias": [
                PositionBias(lambda i, j: by_heads(i, j), by_distance=True),
                random(B, 1, T, S),
            ],
            "mask": [EMPTY, some(1, 1, T, 1)],
        },
    ),
}


def by_heads(i, j):
    """As of ALiBi: a slope for each head."""
    slopes = keras.ops.arange(1.0, H + 1.0)[:, None, None]
    return -0.1 * slopes * keras.ops.cast(keras.ops.abs(i - j), "float32")


SINK = {"sink": random(H, seed=8)}
# Those of them that have a sink too.
WITH_SINK = ("all keys", "causal", "padded queries", "rows without keys", "a bias of queries")
PROBLEMS = [*((name, {}) for name in FUSED), *((name, SINK) for name in WITH_SINK)]
by_masks = pytest.mark.skipif(backend.FUSED_READS != ("masks",), reason="not of this backend")
by_lengths = pytest.mark.skipif("lengths" not in backend.FUSED_READS, reason="not of this backend")


@by_masks
@pytest.mark.parametrize("name, learned", PROBLEMS)
def test_fused_is_the_reference(name, learned):
    groups, given = FUSED[name]
    given = {key: tensor(x) if isinstance(x, np.ndarray) else x for key, x in given.items()}
    check("fused", groups, learned, given, size=K)


@by_masks
@pytest.mark.parametrize("lengths", [(S, T), (1, 1), (1, S), (T, 1)])
def test_fused_of_other_lengths(lengths):
    for offset, learned in ((0, {}), (3, {}), (0, SINK), (3, SINK)):
        given = {"pattern": patterns.Causal(), "offset": offset}
        check("fused", 2, learned, given, lengths, size=K)


@by_masks
@pytest.mark.parametrize("learned", [{}, SINK], ids=["no sink", "a sink"])
@pytest.mark.parametrize("dtype, atol", [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 2e-4)])
def test_the_log_sum_exp_of_the_fused_kernel(dtype, atol, learned):
    arrays = [tensor(random(B, n, H, K, seed=n)) for n in (T, S, S)]
    arrays = [keras.ops.cast(keras.ops.cast(x, "bfloat16"), dtype) for x in arrays]
    wide = [keras.ops.cast(x, "float64") for x in arrays]
    for given in ({"pattern": patterns.Causal()}, {"mask": [EMPTY, some(1, 1, T, 1)]}):
        given = {**given, **learned, "return_lse": True}
        found = problems.attend(*arrays, kernel="fused", **given)
        expected = problems.attend(*wide, kernel="reference", **given)
        np.testing.assert_allclose(found.lse, expected.lse, rtol=1e-6, atol=atol)
        if learned:
            continue
        with_gradient = [x.requires_grad_() for x in map(keras.ops.copy, arrays)]
        assert explain(*with_gradient, **given)[0] == "blockwise"


@by_masks
def test_second_derivatives_of_a_sink():
    import torch

    arrays = [random(1, 5, 2, K, seed=n) for n in range(3)] + [random(2)]

    def slope(kernel):
        leaves = [tensor(array).requires_grad_() for array in arrays]
        total = problems.attend(*leaves[:3], sink=leaves[3], kernel=kernel).output.square().sum()
        first = torch.autograd.grad(total, leaves, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    for found, expected in zip(slope("fused"), slope("reference"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@by_masks
def test_no_log_sum_exp_in_what_pytorch_records(monkeypatch):
    arrays = [np.ones((1, 8, 2, 4), "float32")] * 3
    assert explain(*arrays, sink=random(2))[0] == "fused"
    for name, value in (("_tracing", True), ("_has_lse", False), ("on_accelerator", True)):
        with monkeypatch.context() as patch:
            owner = backend if hasattr(backend, name) else sys.modules[type(backend).__module__]
            patch.setattr(owner, name, lambda *_, value=value: value)
            assert explain(*arrays, sink=random(2))[0] == "blockwise"
            assert explain(*arrays)[0] == "fused"


@by_masks
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_fused_in_other_dtypes_and_with_huge_numbers(dtype):
    check_huge_numbers("fused", dtype, EMPTY)


def check_huge_numbers(kernel, dtype, mask):
    query, key, value = (random(B, n, H, K, seed=n) for n in (T, S, S))
    query[0, 1], key[0, 2], value[1, 3] = 6e4, -6e4, 6e4
    if dtype != "float16":
        query[1, 4], key[1, 5] = 1e30, 3e38
    arrays = [keras.ops.cast(tensor(array), dtype) for array in (query, key, value)]
    # NumPy lacks bfloat16.
    readable = "float32" if dtype == "bfloat16" else dtype
    found, expected = (
        keras.ops.convert_to_numpy(keras.ops.cast(attended.output, readable)).astype("float64")
        for attended in (
            problems.attend(*arrays, mask=tensor(mask), kernel=name)
            for name in (kernel, "reference")
        )
    )
    rounding = {"float64": 1e-7, "float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}[dtype]
    np.testing.assert_allclose(found, expected, rtol=2 * rounding, atol=rounding)


@by_masks
def test_fused_with_infinite_keys_that_are_masked():
    query, key, value = (random(B, n, H, K, seed=n).astype("float16") for n in (T, S, S))
    key[0, S - 1] = np.inf
    mask = {"mask": tensor(np.arange(S)[None, None, None] < S - 1)}
    weights = tensor(random(B, T, H, K).astype("float16"))

    def answers(kernel):
        def attend(*arrays):
            return problems.attend(*arrays, kernel=kernel, **mask).output

        output = keras.ops.convert_to_numpy(attend(*map(tensor, (query, key, value))))
        return output, gradients(lambda *x: attend(*x) * weights, [query, key, value])[0]

    for found, expected in zip(answers("fused"), answers("reference"), strict=True):
        # Gradients are sums of numbers rounded to float16.
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


@pytest.fixture
def on_processor_cores(monkeypatch):
    """JAX's own attention of whole scores in place of cuDNN's, which needs a GPU."""
    monkeypatch.setattr(backend, "FUSED", {"platform": "cpu", "implementation": "xla"})
    one = "there is one query"
    monkeypatch.setattr(
        backend, "fused_unsupported_reason", lambda query, *_: one if query.shape[1] == 1 else None
    )
    taken = []
    attend = backend.fused_attention
    monkeypatch.setattr(
        backend, "fused_attention", lambda *x, **given: taken.append(x) or attend(*x, **given)
    )
    return taken


def lengths(*numbers, of=S):
    return np.arange(of) < np.array(numbers)[:, None, None, None]


# Lengths, and what else is given.
BY_LENGTHS = {
    "all keys": ((T, S), {}),
    "causal": ((S, S), {"pattern": patterns.Causal()}),
    "padded at the end": ((T, S), {"mask": lengths(9, S)}),
    "padded alike": ((T, S), {"mask": lengths(9)}),
    "padded whole": ((T, S), {"mask": lengths(0, 3)}),
    "padded at the start": ((T, S), {"mask": ~lengths(9, 3)}),
    "with gaps": ((T, S), {"mask": some(B, 1, 1, S)}),
    "a window": ((S, S), {"pattern": patterns.Causal() & patterns.SlidingWindow(3, 2)}),
    "a window alone": ((S, S), {"pattern": patterns.SlidingWindow(1, 0)}),
    "causal, padded at the end": ((S, S), {"mask": lengths(9, 0), "pattern": patterns.Causal()}),
    "causal, padded at both ends": (
        (S, S),
        {"mask": lengths(9, 12) & ~lengths(2, 0), "pattern": patterns.Causal()},
    ),
    "causal, with gaps": ((S, S), {"mask": some(B, 1, 1, S), "pattern": patterns.Causal()}),
    "padded queries": ((T, S), {"mask": [lengths(9, S), some(B, 1, T, 1), lengths(12)]}),
    # By a mask of all pairs.
    "causal, from 5 on": ((T, S), {"pattern": patterns.Causal(), "offset": 5}),
    "a window on both sides, padded": (
        (S, S),
        {"pattern": patterns.SlidingWindow(2, 3), "mask": lengths(9, 0)},
    ),
    "segments": ((T, S), {"segment_ids": SEGMENTS, "pattern": ~patterns.Causal()}),
    "rows without keys": ((T, S), {"mask": [EMPTY, some(1, 1, T, 1)]}),
    "masks of heads": ((T, S), {"mask": some(B, H, 1, S)}),
}


@by_lengths
@pytest.mark.parametrize("name", BY_LENGTHS)
def test_fused_by_lengths_is_the_reference(name, on_processor_cores):
    sizes, given = BY_LENGTHS[name]
    check("fused", 2, {}, given, sizes, size=K)
    assert on_processor_cores


@by_lengths
def test_lengths_are_read_where_keys_can_be_moved(on_processor_cores):
    """Outside of compiled programs one kernel runs, and it is seen which."""
    arrays = random(B, S, H, K), random(B, S, 2, K), random(B, S, 2, K)
    for mask, causal in (
        (lengths(9, S), True),
        (~lengths(9, 3), True),
        (lengths(9, 12) & ~lengths(2, 0), True),
        (some(B, 1, 1, S), False),
    ):
        for pattern in (None, patterns.Causal()):
            on_processor_cores.clear()
            given = {"mask": tensor(mask), "pattern": pattern, "kernel": "fused"}
            problems.attend(*map(tensor, arrays), **given)
            assert bool(on_processor_cores) == (pattern is None or causal)
    arrays = random(B, T, H, K), *arrays[1:]
    on_processor_cores.clear()
    problems.attend(*map(tensor, arrays), mask=tensor(lengths(0, 4)), kernel="fused")
    assert np.array_equal(on_processor_cores[0][4], [1, 4])
    # An array that lies elsewhere than where the kernel is.
    on_processor_cores.clear()
    backend.FUSED["platform"] = "cuda"
    problems.attend(*map(tensor, arrays), mask=tensor(lengths(0, 4)), kernel="fused")
    assert not on_processor_cores


@by_lengths
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_fused_by_lengths_in_other_dtypes_and_with_huge_numbers(dtype, on_processor_cores):
    check_huge_numbers("fused", dtype, lengths(8, 0))


@by_lengths
def test_fused_by_lengths_is_chosen_where_it_can_be(monkeypatch, on_processor_cores):
    def chosen(*sizes, **given):
        arrays = random(B, sizes[0], H, K), random(B, sizes[1], 2, K), random(B, sizes[1], 2, K)
        return explain(*arrays, **given)

    causal = patterns.Causal()
    window = causal & patterns.SlidingWindow(2, 2)
    assert chosen(600, 600, pattern=window)[0] == chosen(S, S, pattern=window)[0] == "fused"
    assert "not 'banded': the backend's fused kernel" in chosen(600, 600, pattern=window)[1]
    assert chosen(T, S)[0] == chosen(S, S, pattern=causal)[0] == "fused"
    assert chosen(T, S, mask=lengths(9, S))[0] == "fused"
    assert chosen(1, S)[0] == "single_query"
    by_pairs = (
        {"pattern": causal, "offset": 3},
        {"pattern": ~causal},
        {"pattern": window & patterns.Block(4)},
        {"pattern": window, "mask": lengths(9, S)},
        {"segment_ids": (SEGMENTS[1], SEGMENTS[1])},
        {"mask": some(B, 1, S, S)},
        {"mask": some(B, H, 1, S)},
    )
    for given in by_pairs:
        assert chosen(S, S, **given)[0] == "fused"
    assert chosen(T, S, pattern=causal)[0] == "fused"
    monkeypatch.setattr(fused, "ELEMENTS", dict.fromkeys((False, True), S))
    for given, why in (
        *((given, "mask of all pairs would be large") for given in by_pairs),
        ({"dropout": 0.1}, "drops weights"),
        ({"bias": random(1, H, S, S)}, "gradient of a bias"),
    ):
        assert chosen(S, S, **given)[0] == "blockwise"
        with pytest.raises(ValueError, match=f"'fused' cannot do this: .*{why}"):
            chosen(S, S, kernel="fused", **given)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="'fused' cannot do this: cuDNN's kernel needs a GPU"):
        chosen(T, S, kernel="fused")


@by_lengths
def test_models_train_through_lengths(monkeypatch, on_processor_cores):
    tokens = np.random.default_rng(0).integers(1, 9, (4, 12), "int32")
    tokens[0, 9:], tokens[1, :4], tokens[2] = 0, 0, 0

    def trained():
        keras.utils.set_random_seed(0)
        block = {"intermediate_dim": 16, "num_heads": 2, "causal": True}
        inputs = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(9, 8, mask_zero=True)(inputs)
        model = keras.Model(inputs, keras_attention.TransformerBlock(**block)(x))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(tokens, np.ones((4, 12, 8)), batch_size=2, epochs=2, shuffle=False, verbose=0)
        return [*model.get_weights(), model.predict(tokens, verbose=0)]

    found = trained()
    assert on_processor_cores
    monkeypatch.setattr(backend, "FUSED_READS", ())
    for one, other in zip(found, trained(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@by_lengths
def test_a_program_for_a_gpu_has_its_kernel_and_one_for_processor_cores_has_not(monkeypatch):
    """Programs are made for a GPU that is not here, and what JAX needs to know of it is given."""
    import jax

    checks = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(checks, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(checks, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(checks, "is_cuda_compute_capability_equal", lambda _: False)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def arrays(dtype, size=16, length=32):
        return [jax.numpy.ones((B, length, heads, size), dtype) for heads in (H, 2, 2)]

    for given, why in (
        (("float32",), "float32"),
        (("bfloat16", 12), "multiple of 8"),
        (("float16", 16, 31), "length"),
    ):
        name, reason = explain(*arrays(*given))
        assert name == "blockwise"
        assert re.search(f"not 'fused': JAX refuses: .*{why}", reason), reason

    def split(sizes):
        mesh = keras.distribution.DeviceMesh(sizes, ["rows", "heads"], ["gpu"] * 4)
        layouts = keras.distribution.LayoutMap(mesh)
        by = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="rows")
        monkeypatch.setattr(keras.distribution, "distribution", lambda: by)
        return explain(*arrays("bfloat16"))[0]

    # Four devices would have a query head each, and share two key heads, of which cuDNN has parts.
    assert split((1, 4)) == "blockwise"
    assert split((2, 2)) == split((4, 1)) == "fused"

    calls = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
    unchecked = [jax.export.DisabledSafetyCheck.custom_call(name) for name in calls]
    for given in (
        {},
        {"mask": lengths(9, 32, of=32)},
        {"pattern": patterns.Causal()},
        {"mask": lengths(9, 32, of=32), "pattern": patterns.Causal()},
        {"pattern": patterns.SlidingWindow(5, 0)},
    ):

        def total(*arrays, given=given):
            name, why = explain(*arrays, **given)
            assert name == "fused", why
            return problems.attend(*arrays, **given).output.astype("float32").sum()

        program = jax.jit(jax.grad(total, (0, 1, 2)))
        for platform in ("cuda", "cpu"):
            made = jax.export.export(program, platforms=[platform], disabled_checks=unchecked)
            text = made(*arrays("bfloat16")).mlir_module()
            assert all((f"@{name}(" in text) == (platform == "cuda") for name in calls)


@pytest.mark.skipif(not backend.FUSED_READS, reason="not of this backend")
def test_keras_can_disable_it(monkeypatch):
    arrays = random(B, T, H, K), random(B, S, 2, K), random(B, S, 2, K)
    monkeypatch.setattr(keras.config, "is_flash_attention_enabled", lambda: False)
    name, reason = explain(*arrays)
    assert name == "blockwise" and "not 'fused': flash attention is disabled" in reason


@pytest.mark.skipif(not backend.FUSED_READS, reason="not of this backend")
def test_on_accelerators_windows_are_fused_unless_they_are_narrow(monkeypatch):
    monkeypatch.setattr(backend, "on_accelerator", lambda _: True)
    monkeypatch.setattr(backend, "fused_unsupported_reason", lambda *_: None)
    monkeypatch.setattr(backend, "FUSED_GAIN", 8)

    def chosen(length, *window):
        arrays = [np.zeros((1, length, heads, 2), "float16") for heads in (4, 2, 2)]
        return explain(*arrays, pattern=patterns.SlidingWindow(*window))

    assert chosen(4096, 64, 64)[0] == chosen(16384, 1023, 1)[0] == "banded"
    name, reason = chosen(4096, 300, 300)
    assert name == "fused" and "not 'banded': the backend's fused kernel is faster" in reason
    assert chosen(32768, 2048, 2048)[0] == "banded"


def test_fused_is_chosen_where_the_backend_has_it(monkeypatch):
    arrays = random(B, T, H, K), random(B, S, 2, K), random(B, S, 2, K)
    expected = "fused" if backend.FUSED_READS == ("masks",) else "blockwise"
    assert explain(*arrays)[0] == expected
    assert explain(*arrays, mask=some(B, 1, 1, S))[0] == expected
    for given in (
        {"dropout": 0.1},
        {"bias": distance, "logit_soft_cap": 2.0},
        {"logit_soft_cap": 2.0},
        {"relative_values": SHAW["relative_values"][..., :1]},
        {"relative_keys": SHAW["relative_keys"]},
    ):
        assert explain(*arrays, **given)[0] == "blockwise"
    assert explain(*arrays, sink=random(H))[0] == expected
    assert explain(*arrays[:2], arrays[2][..., 1:])[0] == "blockwise"
    assert explain(*arrays, bias=random(1, H, T, S))[0] == expected
    assert explain(*arrays, bias=tensor(keras.Variable(random(H, T, S)))[None])[0] == "blockwise"
    assert explain(*arrays, bias=distance)[0] == expected
    table = tensor(keras.Variable(random(T, S)))
    trained = PositionBias(lambda i, j, table: table, (table,))
    assert explain(*arrays, bias=trained)[0] == "blockwise"
    for bias in (distance, random(1, H, T, S)):
        half = [x.astype("float16") for x in arrays]
        assert explain(*half, bias=bias)[0] == expected
        with monkeypatch.context() as patch:
            patch.setattr(backend, "on_accelerator", lambda _: True)
            assert explain(*half, bias=bias)[0] == "blockwise"
    long = np.zeros((1, 2**13, 1, 1), "float32")
    assert explain(long, long, long, pattern=patterns.Causal())[0] == expected
    several = {"pattern": patterns.Causal(), "mask": np.ones((1, 1, 1, 2**13), "bool")}
    assert explain(long, long, long, **several)[0] == "blockwise"
