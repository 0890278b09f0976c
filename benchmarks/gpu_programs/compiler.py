"""Compiles for an H100 on a machine without a GPU.

A description of the device makes a topology of devices that are not here, and its client compiles
for them. What a program is compiled for is asked while it is traced too: by JAX, whose checks of
cuDNN's version and of the device are answered here, and by the package.
"""

import dataclasses
import functools
import os
import pathlib
import re
import sys

# Of the extra `gpu-programs`, if it is not installed.
MISSING = (
    "Programs for a GPU are compiled by XLA's compiler for CUDA, which is not installed: {error}. "
    'Install it, 5.6 GB, by `pip install "keras_attention[gpu-programs]"`, which needs no GPU.'
)
_COPY = re.compile(r"mhlo\.copy (%[\w#]+)[^:\n]*: (tensor<[^>]*>)")
DESCRIPTION = pathlib.Path(__file__).parent / "h100.pbtxt"
CUDNN = 91000


class NotInstalled(Exception):
    """The extra is missing, or no version of it that compiles without a GPU."""


@dataclasses.dataclass
class Compiled:
    """A program: its text, and the bytes of its temporary arrays."""

    text: str
    temporary: int


def environment():
    """Sets what must be set before JAX and TensorFlow are imported."""
    os.environ.update(
        CUDA_VISIBLE_DEVICES="-1",
        # The plugin looks for a driver.
        JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    # Tuning would run candidates.
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_autotune_level=0".strip()


@functools.cache
def devices(count):
    """`count` devices, none of which is here."""
    # Imports of TensorFlow first, which other tests may have imported, are no problem.
    try:
        from jax.experimental import topologies

        found = topologies.get_topology_desc(
            platform="cuda",
            target_config=DESCRIPTION.read_text(encoding="utf-8"),
            topology=f"1x1x{count}",
        )
    except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise NotInstalled(MISSING.format(error=said)) from error
    return tuple(found.devices)


def mesh(sizes, names):
    """A mesh of devices that are not here."""
    import jax
    import numpy as np

    count = int(np.prod(sizes))
    return jax.sharding.Mesh(np.array(devices(count)).reshape(sizes), names)


def as_on_a_gpu(count=1):
    """Answers as on an H100 to all who ask what runs here."""
    import jax

    from keras_attention.backend import backend

    devices(count)
    jax.default_backend = lambda: "gpu"
    jax.device_count = lambda *_: count
    if "tensorflow" in sys.modules:
        backend.on_accelerator = lambda array: True
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    cudnn.check_cudnn_version = lambda *_, **__: CUDNN
    cudnn.check_compute_capability = lambda *_: True
    cudnn.is_cuda_compute_capability_equal = lambda *_, **__: False


def of_jax(function, arguments, output_sharding=None):
    """The `Compiled` function of JAX for `jax.ShapeDtypeStruct`s on `devices`."""
    import jax

    traced = jax.jit(function, out_shardings=output_sharding).trace(*arguments)
    lowered = traced.lower(lowering_platforms=("cuda",))
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "output tile sizes" not in str(error):
            raise
        # Tuning would have found that Triton has no program for one of the products.
        compiled = lowered.compile({"xla_gpu_enable_triton_gemm": False})
    return Compiled(compiled.as_text(), compiled.memory_analysis().temp_size_in_bytes)


def of_hlo(serialized):
    """The `Compiled` program of a serialized `HloModuleProto`, as TensorFlow gives it."""
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jaxlib.mlir import ir

    computation = xla_client.XlaComputation(serialized)
    text = _jax.mlir.xla_computation_to_mlir_module(computation)
    text = text.decode() if isinstance(text, bytes) else text
    with mlir.make_ir_context():
        # StableHLO has no copies: a reshape to the same sizes is one.
        module = ir.Module.parse(_COPY.sub(r"stablehlo.reshape \1 : (\2) -> \2", text))
        on = devices(1)
        options = xla_client.CompileOptions()
        options.num_replicas = options.num_partitions = 1
        compiled = on[0].client.compile(module, _jax.DeviceList(on), options)
    (program,) = compiled.hlo_modules()
    return Compiled(program.to_string(), compiled.get_compiled_memory_stats().temp_size_in_bytes)
