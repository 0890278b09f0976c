"""The backend's fused kernel against the reference, and where it is chosen."""

import re
import sys

import keras
import numpy as np
import pytest

from keras_attention import patterns
from keras_attention.backend import backend
from keras_attention.kernels import fused
from keras_attention.spec import PositionBias
from tests import problems
from tests.arrays import numpy, random
from tests.kernels.cases import (
    EMPTY,
    as_on_a_gpu,
    distance,
    fused_on_cpus,
    lengths,
    segments,
    tables,
)
from tests.problems import B, H, K, S, T, explain, some

CAUSAL = patterns.Causal()
WIDEST = "float32" if keras.config.backend() == "jax" else "float64"
SINK = {"sink": random(H, seed=8)}


def tensor(array, dtype=None):
    return keras.ops.convert_to_tensor(array, dtype)


by_masks = pytest.mark.skipif(backend.FUSED_READS != ("masks",), reason="not of this backend")
fuses = pytest.mark.skipif(not backend.FUSED_READS, reason="not of this backend")
by_lengths = pytest.mark.skipif("lengths" not in backend.FUSED_READS, reason="not of this backend")


@by_masks
@pytest.mark.parametrize("dtype, atol", [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 2e-4)])
def test_the_log_sum_exp_of_the_fused_kernel(dtype, atol):
    arrays = [tensor(tensor(random(B, n, H, K, seed=n), "bfloat16"), dtype) for n in (T, S, S)]
    exact = [tensor(x, "float64") for x in arrays]
    for given in ({"pattern": CAUSAL}, {"mask": [EMPTY, some(1, 1, T, 1)], **SINK}):
        given["return_lse"] = True
        found = problems.attend(*arrays, kernel="fused", **given)
        expected = problems.attend(*exact, kernel="reference", **given)
        np.testing.assert_allclose(found.lse, expected.lse, rtol=1e-6, atol=atol)
    with_gradient = [x.requires_grad_() for x in map(keras.ops.copy, arrays)]
    assert explain(*with_gradient, pattern=CAUSAL, return_lse=True)[0] == "blockwise"


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


@fuses
@pytest.mark.parametrize("dtype", [WIDEST, "bfloat16", "float16"])
def test_other_dtypes_and_huge_numbers(dtype, on_processor_cores):
    query, key, value = (random(B, n, H, K, seed=n) for n in (T, S, S))
    query[0, 1], key[0, 2], value[1, 3] = 6e4, -6e4, 6e4
    key[:, -1] = np.inf
    if dtype != "float16":
        query[1, 4], key[1, 5] = 1e30, 3e38
    arrays = [tensor(array, dtype) for array in (query, key, value)]
    rounding = {"float64": 1e-7, "float32": 1e-6, "bfloat16": 2**-7, "float16": 2**-10}[dtype]
    for mask in (EMPTY & lengths(S - 1), lengths(8, 0)):
        found, expected = (
            numpy(problems.attend(*arrays, mask=mask, kernel=name).output).astype("float64")
            for name in ("fused", "reference")
        )
        np.testing.assert_allclose(found, expected, rtol=2 * rounding, atol=rounding)


@pytest.fixture
def on_processor_cores(monkeypatch):
    return fused_on_cpus(monkeypatch)


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
        for pattern in (None, CAUSAL):
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
def test_fused_by_lengths_is_chosen_where_it_can_be(monkeypatch, on_processor_cores):
    def chosen(*sizes, **given):
        arrays = random(B, sizes[0], H, K), random(B, sizes[1], 2, K), random(B, sizes[1], 2, K)
        return explain(*arrays, **given)

    window = CAUSAL & patterns.SlidingWindow(2, 2)
    assert chosen(600, 600, pattern=window)[0] == chosen(S, S, pattern=window)[0] == "fused"
    assert "not 'banded': the backend's fused kernel" in chosen(600, 600, pattern=window)[1]
    assert chosen(T, S)[0] == chosen(S, S, pattern=CAUSAL)[0] == "fused"
    assert chosen(T, S, mask=lengths(9, S))[0] == "fused"
    assert chosen(1, S)[0] == "single_query"
    by_pairs = (
        {"pattern": CAUSAL, "offset": 3},
        {"pattern": ~CAUSAL},
        {"pattern": window & patterns.Block(4)},
        {"pattern": window, "mask": lengths(9, S)},
        {"segment_ids": (*segments(B, S, S),)},
        {"mask": some(B, 1, S, S)},
        {"mask": some(B, H, 1, S)},
    )
    for given in by_pairs:
        assert chosen(S, S, **given)[0] == "fused"
    assert chosen(T, S, pattern=CAUSAL)[0] == "fused"
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
def test_a_program_for_a_gpu_has_its_kernel_and_one_for_processor_cores_has_not(monkeypatch):
    """Programs are made for a GPU that is not here."""
    import jax

    as_on_a_gpu(monkeypatch)

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
        {"pattern": CAUSAL},
        {"mask": lengths(9, 32, of=32), "pattern": CAUSAL},
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


@fuses
def test_keras_can_disable_it(monkeypatch):
    arrays = random(B, T, H, K), random(B, S, 2, K), random(B, S, 2, K)
    monkeypatch.setattr(keras.config, "is_flash_attention_enabled", lambda: False)
    name, reason = explain(*arrays)
    assert name == "blockwise" and "not 'fused': flash attention is disabled" in reason


@fuses
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
    """What else decides is in the table of tests/kernels/test_half_precision_table.py."""
    arrays = random(B, T, H, K), random(B, S, 2, K), random(B, S, 2, K)
    expected = "fused" if backend.FUSED_READS == ("masks",) else "blockwise"
    for given in ({}, {"mask": some(B, 1, 1, S), "sink": random(H)}, {"bias": distance()}):
        assert explain(*arrays, **given)[0] == expected
    variable, table = (tensor(keras.Variable(random(*x))) for x in ((1, H, T, S), (T, S)))
    for given in (
        {"bias": distance(), "logit_soft_cap": 2.0},
        {"relative_values": tables()["relative_values"][..., :1]},
        {"bias": variable},
        {"bias": PositionBias(lambda i, j, table: table, (table,))},
    ):
        assert explain(*arrays, **given)[0] == "blockwise"
    assert explain(*arrays[:2], arrays[2][..., 1:])[0] == "blockwise"
    for bias in (distance(), random(1, H, T, S)):
        half = [x.astype("float16") for x in arrays]
        assert explain(*half, bias=bias)[0] == expected
        with monkeypatch.context() as patch:
            patch.setattr(backend, "on_accelerator", lambda _: True)
            assert explain(*half, bias=bias)[0] == "blockwise"
    long = np.zeros((1, 2**13, 1, 1), "float32")
    assert explain(long, long, long, pattern=CAUSAL)[0] == expected
    several = {"pattern": CAUSAL, "mask": np.ones((1, 1, 1, 2**13), "bool")}
    assert explain(long, long, long, **several)[0] == "blockwise"
