"""Layers compiled by each framework's compiler, and recomputed in a gradient."""

import functools

import keras
import pytest

from tests import share
from tests.conformance import CASES
from tests.transforms import BACKEND, FLOATS, Problem, check, close, gradient

# PyTorch takes up to 15 s to compile each: one in 16, others for each change.
SOME = CASES[share.SHIFT % 16 :: 16] if BACKEND == "torch" else CASES
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
    if not p.case.float_inputs:
        return [function(p.x)]
    if BACKEND == "torch":
        import torch

        x = p.x.clone().requires_grad_()
        output = function(x)
        if output.requires_grad:
            output.square().sum().backward()
        return output.detach(), torch.zeros_like(x) if x.grad is None else x.grad
    return function(p.x), gradient(lambda x: keras.ops.sum(keras.ops.square(function(x))), p.x)


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

    check("jit", run) if row == "jit" else check("remat", run)


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
