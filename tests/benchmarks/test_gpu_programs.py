"""What is summed from the text of a program for a GPU, and what is said without the compiler."""

import importlib.util
import sys

import pytest

from benchmarks.gpu_programs import command, compiler
from benchmarks.gpu_programs.costs import MEMORY, OPERATIONS, costs
from benchmarks.gpu_programs.program_text import computations

pytestmark = pytest.mark.any_backend

# A loop of four over slices of %p (4096 × 64 float32), each multiplied by %w and written in place;
# two branches; a call of cuDNN.
TEXT = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[4096,64]{1,0})->f32[]}

%sliced (param_0: f32[4096,64], param_1: s32[]) -> f32[1024,64] {
  %param_0 = f32[4096,64]{1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[1024,64]{1,0} dynamic-slice(%param_0, %param_1, %zero), dynamic_slice_sizes={1024,64}
}

%product (a: f32[1024,64], b: f32[64,64]) -> f32[1024,64] {
  %a = f32[1024,64]{1,0} parameter(0)
  %b = f32[64,64]{1,0} parameter(1)
  ROOT %dot = f32[1024,64]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%written (buffer: f32[4096,64], update: f32[1024,64], at: s32[]) -> f32[4096,64] {
  %buffer = f32[4096,64]{1,0} parameter(0)
  %update = f32[1024,64]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %new = f32[4096,64]{1,0} dynamic-update-slice(%buffer, %update, %at, %zero.1)
}

%body (carry: (s32[], f32[4096,64], /*index=2*/f32[64,64], f32[4096,64])) -> (s32[], f32[4096,64], /*index=2*/f32[64,64], f32[4096,64]) {
  %carry = (s32[], f32[4096,64]{1,0}, /*index=2*/f32[64,64]{1,0}, f32[4096,64]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%carry), index=0
  %p.1 = f32[4096,64]{1,0} get-tuple-element(%carry), index=1
  %w.1 = f32[64,64]{1,0} get-tuple-element(%carry), index=2
  %out = f32[4096,64]{1,0} get-tuple-element(%carry), index=3
  %part = f32[1024,64]{1,0} fusion(%p.1, %n), kind=kLoop, calls=%sliced
  %gemm = f32[1024,64]{1,0} fusion(%part, %w.1), kind=kCustom, calls=%product, backend_config={"fusion_backend_config":{"kind":"__triton_gemm"}}
  %put = f32[4096,64]{1,0} fusion(%out, %gemm, %n), kind=kLoop, calls=%written
  ROOT %next = (s32[], f32[4096,64]{1,0}, /*index=2*/f32[64,64]{1,0}, f32[4096,64]{1,0}) tuple(%n, %p.1, %w.1, %put)
}

%until (carry.1: (s32[], f32[4096,64], f32[64,64], f32[4096,64])) -> pred[] {
  ROOT %yes = pred[] constant(true)
}

%fused (x: bf16[2,32,8,64]) -> bf16[2,32,8,64] {
  %x = bf16[2,32,8,64]{3,2,1,0} parameter(0)
  %call = (bf16[2,32,8,64]{3,1,2,0}, f32[2,8,32]{2,1,0}, u8[0]{0}) custom-call(%x, %x, %x), custom_call_target="__cudnn$fmhaSoftmax", backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"dimensions": ["2", "8", "32", "32"]}, "mask_type": "CAUSAL", "sliding_window_length": 0}}
  ROOT %first = bf16[2,32,8,64]{3,1,2,0} get-tuple-element(%call), index=0
}

%tiled (x.1: bf16[2,32,8,64]) -> bf16[2,32,8,64] {
  %x.1 = bf16[2,32,8,64]{3,2,1,0} parameter(0)
  %many = f32[9999,99]{1,0} iota(), iota_dimension=0
  ROOT %same = bf16[2,32,8,64]{3,2,1,0} copy(%x.1)
}

ENTRY %main (p: f32[4096,64], w: f32[64,64], y: bf16[2,32,8,64]) -> f32[] {
  %p = f32[4096,64]{1,0} parameter(0), metadata={op_name="p"}
  %w = f32[64,64]{1,0} parameter(1)
  %y = bf16[2,32,8,64]{3,2,1,0} parameter(2)
  %start = f32[4096,64]{1,0} copy(%p)
  %i = s32[] constant(0)
  %tuple = (s32[], f32[4096,64]{1,0}, f32[64,64]{1,0}, f32[4096,64]{1,0}) tuple(%i, %p, %w, %start)
  %loop = (s32[], f32[4096,64]{1,0}, f32[64,64]{1,0}, f32[4096,64]{1,0}) while(%tuple), condition=%until, body=%body, backend_config={"known_trip_count":{"n":"4"},"known_init_step":{"init":"0"}}
  %chosen = bf16[2,32,8,64]{3,2,1,0} conditional(%i, %y, %y), branch_computations={%fused, %tiled}
  ROOT %done = f32[] constant(0)
}
"""  # noqa: E501
WHOLE, PART, WEIGHTS, HEADS = 4096 * 64 * 4, 1024 * 64 * 4, 64 * 64 * 4, 2 * 32 * 8 * 64


def test_bytes_operations_and_loops_are_summed():
    found = costs(TEXT, copies_of=4096 * 64)
    index = 4
    once = (2 * PART + index) + (2 * PART + WEIGHTS) + (2 * PART + index)
    # Its queries, keys and values are one array, read once.
    called = 2 * 2 * HEADS + 4 * 2 * 8 * 32
    assert found.bytes == 2 * WHOLE + 4 * once + called
    products = 4 * 2 * 1024 * 64 * 64
    pairs = 2 * 8 * 32 * 32 // 2
    assert found.operations == products + 2 * 2 * pairs * 64
    assert found.loops == [(4, 0)]
    assert found.calls == {"Triton": 1, "__cudnn$fmhaSoftmax": 1}
    assert found.copies == ["start"]
    least = (2 * WHOLE + 4 * once + called) / MEMORY
    assert found.seconds == pytest.approx(least, rel=0.2) and found.seconds >= least
    assert OPERATIONS["bf16"] == 2 * OPERATIONS["f32"] + 1e12


def test_a_loop_of_unknown_trips_counts_as_often_as_is_assumed():
    unknown = TEXT.replace('"known_trip_count":{"n":"4"},', "")
    assert costs(unknown).loops == [(None, 0)]
    assert costs(unknown, assumed_trips=4).bytes == costs(TEXT).bytes


def test_text_is_read_whole():
    parts, entry = computations(TEXT)
    assert entry == "main" and len(parts) == 8
    assert [len(one.arrays) for one in parts["main"].values()] == [1, 1, 1, 1, 1, 4, 4, 1, 1]
    assert parts["body"].root.operands == ("n", "p.1", "w.1", "put")
    assert parts["main"]["loop"].called("body", "condition") == ["body", "until"]


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is not None, reason="the extra is installed"
)
def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(compiler, "environment", lambda: None)
    compiler.devices.cache_clear()
    # With JAX, and without.
    for modules in ({}, {"jax.experimental": None}):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        with pytest.raises(SystemExit):
            command.main([])
        said = capsys.readouterr().err
        assert 'pip install "keras_attention[gpu-programs]"' in said and "needs no GPU" in said
