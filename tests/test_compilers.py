"""Layers compiled by each framework's compiler, and recomputed in a gradient."""

import keras
import pytest

from tests import share
from tests.conformance import CASES
from tests.transforms import BACKEND, FLOATS, Problem, check, close, gradient

# PyTorch takes up to 15 s for each: one in 16, others for each change.
SOME = CASES[share.SHIFT % 16 :: 16] if BACKEND == "torch" else CASES


@pytest.mark.ci
@pytest.mark.parametrize("case", SOME, ids=str)
def test_jit(case, recwarn):
    """An output and its gradient, by one program."""
    p = Problem(case)

    def run():
        found = both(compiler()(lambda x: p.output(x)), p)
        for mine, other in zip(found, both(p.output, p), strict=True):
            close(mine, other)

    check("jit", run)


def compiler():
    if BACKEND == "jax":
        import jax

        return jax.jit
    if BACKEND == "torch":
        import torch

        torch._dynamo.reset()
        # As all of PyTorch's compilers record it, without compiling what is recorded.
        return lambda function: torch.compile(function, backend="eager")
    import tensorflow as tf

    return lambda function: tf.function(function, jit_compile=True)


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


def remat_functions():
    """Functions that recompute another in a gradient: Keras's and the framework's."""
    if BACKEND == "jax":
        import jax

        return [keras.remat, jax.checkpoint]
    if BACKEND == "torch":
        import torch.utils.checkpoint

        def checkpointed(function):
            return lambda x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)

        return [keras.remat, checkpointed]
    import tensorflow as tf

    return [keras.remat, tf.recompute_grad]


def total(function, x):
    return keras.ops.sum(keras.ops.square(function(x)))


@pytest.mark.ci
@pytest.mark.parametrize("case", FLOATS, ids=str)
def test_remat(case):
    p = Problem(case)

    def run():
        functions = [p.output, *(remat(p.output) for remat in remat_functions())]
        if BACKEND == "jax":
            # Traced: what a recomputation changes is known then.
            import jax

            for function in functions:
                jax.make_jaxpr(jax.grad(lambda x, f=function: total(f, x)))(p.x)
            return
        expected, *found = (both(function, p)[1] for function in functions)
        for mine in found:
            close(mine, expected)

    check("remat", run)
