"""Layers compiled by each framework's compiler, and recomputed in a gradient."""

import functools

import keras
import pytest

from tests import share
from tests.conformance import CASES
from tests.gradients import gradients
from tests.transforms import BACKEND, FLOATS, Problem, check, close

# Where each takes up to 15 s to compile, one in 16, others for each change; on JAX tests/contract
# compiles all.
SOME = CASES if BACKEND == "tensorflow" else CASES[share.SHIFT % 16 :: 16]
ROWS = [("jit", case) for case in SOME] + [("remat", case) for case in FLOATS]


def ways(row):
    """What a row does to functions: by the framework's compiler, or Keras's recomputation too."""
    if BACKEND == "jax":
        import jax

        return [jax.jit] if row == "jit" else [keras.remat, jax.checkpoint]
    if BACKEND == "torch":
        import torch.utils.checkpoint

        def checkpointed(function):
            return lambda x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)

        torch._dynamo.reset()
        # As all of PyTorch's compilers record it, without compiling what is recorded.
        compiler = functools.partial(torch.compile, backend="eager")
        return [compiler] if row == "jit" else [keras.remat, checkpointed]
    import tensorflow as tf

    compiler = functools.partial(tf.function, jit_compile=True)
    return [compiler] if row == "jit" else [keras.remat, tf.recompute_grad]


def both(function, p):
    """The output, and the gradient of its squares where there is one."""
    found = [function(p.x)]
    if p.case.float_inputs:
        found += gradients(lambda x: keras.ops.square(function(x)), [p.x])
    return found


@pytest.mark.ci
@pytest.mark.parametrize("row, case", ROWS, ids=str)
def test_outputs_and_gradients_are_those_of_the_layer(row, case, recwarn):
    p = Problem(case)

    def run():
        if row == "remat" and BACKEND == "jax":
            # Traced: what a recomputation changes is known then.
            import jax

            for function in (way(p.output) for way in ways(row)):
                total = jax.grad(lambda x, f=function: keras.ops.sum(keras.ops.square(f(x))))
                jax.make_jaxpr(total)(p.x)
            return
        expected = both(p.output, p)
        for way in ways(row):
            for mine, other in zip(both(way(lambda x: p.output(x)), p), expected, strict=True):
                close(mine, other)

    check(row, run)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's compiler")
@pytest.mark.parametrize("name", ["SelfAttention", "RMSNorm"])
def test_one_graph_of_pytorch(name, recwarn):
    """Nothing breaks the graph of a layer without tables of distances."""
    import torch

    (case,) = (case for case in CASES if str(case) == name)
    p = Problem(case)
    torch._dynamo.reset()
    found = torch.compile(p.layer, backend="eager", fullgraph=True)(p.x)
    close(found.detach(), p.output(p.x).detach())
