"""Derivatives, maps, recordings and copies of layers, over the cases of the conformance suite."""

import copy
import warnings

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import ops, patterns
from tests import problems
from tests.arrays import numpy, randomize
from tests.compiled import compiled
from tests.conformance import CASES, alone, outputs_of
from tests.transforms import (
    BACKEND,
    CELLS,
    FLOATS,
    Problem,
    check,
    checked_rows,
    close,
    every_case,
    forward,
    gradient,
)

every_float = pytest.mark.parametrize("case", FLOATS, ids=str)
# JAX compiles these derivatives of derivatives, and traces the others. The others take long on
# TensorFlow, where these are enough for each change.
FEW = [case for case in CASES if str(case) in ("every-option", "RelativePositionAttention")]
LONG = [
    pytest.param(case, marks=[pytest.mark.slow] * (BACKEND == "tensorflow" and case not in FEW))
    for case in FLOATS
]


def test_every_row_is_checked():
    assert checked_rows() == set(CELLS)


def dot(one, other):
    return keras.ops.sum(one * other)


@pytest.mark.ci
@every_case
def test_gradient_forward_derivative_and_map(case):
    """A derivative along a step is by the gradient, and a map over the rows of a batch is a call.

    On JAX they are one program. That gradients are slopes is a relation of tests/contract.
    """
    p = Problem(case)
    one = Problem(case, p.layer)
    one.rest = [keras.ops.repeat(array[:1], len(p.x), axis=0) for array in p.rest]

    def every(x):
        found = {"map": (keras.ops.vectorized_map(one.row, x), one.output(x))}
        if case.float_inputs:
            along = forward(p.total, x, p.step), dot(gradient(p.total, x), p.step)
            found |= dict.fromkeys(("gradient", "forward derivative"), along)
        return found

    for row, both in compiled(every, p.x).items():
        check(row, lambda both=both: close(*both))


@pytest.mark.parametrize("case", LONG, ids=str)
def test_second_derivative(case):
    """Of a gradient: reverse over reverse is forward over reverse."""
    p = Problem(case)

    def along(x):
        return dot(gradient(p.total, x), p.step)

    def both(x):
        return gradient(along, x), forward(lambda x: gradient(p.total, x), x, p.step)

    def run():
        if BACKEND == "jax" and case not in FEW:
            import jax

            jax.make_jaxpr(both)(p.x)
        else:
            close(*compiled(both, p.x))

    check("second derivative", run)


@pytest.mark.parametrize("case", CASES if BACKEND == "torch" else FEW, ids=str)
def test_trace(case):
    """A function recorded for one batch is right for another; all are, in files of test_export."""
    p = Problem(case)

    def run():
        recorded = {"tensorflow": by_tensorflow, "jax": by_jax, "torch": by_torch}[BACKEND](p)
        for arrays in (p.arrays, p.two()):
            close(recorded(*arrays), p.call(*arrays))

    check("trace", run)


def by_tensorflow(p):
    import tensorflow as tf

    specs = [tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in p.arrays]
    return tf.function(p.call, input_signature=specs)


def by_jax(p):
    """Which records one for each shape."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    return lambda *x: jaxpr_as_fun(jax.make_jaxpr(p.call)(*x))(*x)[0]


def by_torch(p):
    """Which warns of each size that it takes for a constant."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = p.layer

        def forward(self, *arrays):
            return p.call(*arrays)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(Module(), tuple(p.arrays), check_trace=False)


def check_copy(case, copied_of):
    """A copy has the same outputs, and weights of its own."""
    model, given = case.model(), alone(case.arrays())
    randomize(model)
    copied = copied_of(model)
    found, expected = (numpy(outputs_of(m(given))[0]) for m in (copied, model))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    copied.set_weights([weight + 1 for weight in model.get_weights()])
    np.testing.assert_array_equal(numpy(outputs_of(model(given))[0]), expected)


def clone(model):
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    return copied


@pytest.mark.ci
@every_case
def test_copies(case):
    check("clone_model", lambda: check_copy(case, clone))
    check("deepcopy", lambda: check_copy(case, copy.deepcopy))


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's tools")
@every_float
def test_the_tools_of_autograd(case):
    """Jacobians by vectorized gradients, tangents beside arrays, and gradients of gradients."""
    import torch
    from torch.nn import attention

    p = Problem(case)
    cut = (slice(1), slice(2 if case.any_length else None))
    x, step = p.x[cut], p.step[cut]
    p.rest = [array[:1, :3] for array in p.rest]
    expected = torch.func.jacrev(p.output)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operations that are mapped one by one
        found = torch.autograd.functional.jacobian(p.output, x, vectorize=True)
        again = torch.func.jacfwd(p.output)(x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(again, expected, rtol=1e-3, atol=1e-4)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, step)
        tangent = torch.autograd.forward_ad.unpack_dual(p.output(dual)).tangent
    expected = torch.func.jvp(p.output, (x,), (step,))[1]
    if tangent is not None:
        torch.testing.assert_close(tangent, expected, rtol=1e-3, atol=1e-4)
    # As docs/backends.md says.
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        found = torch.autograd.functional.hessian(p.total, x)
    torch.testing.assert_close(found, torch.func.hessian(p.total)(x), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's tools")
def test_dropout_is_mapped():
    import torch

    layer, x = keras_attention.SelfAttention(2, 4, dropout=0.5, use_sink=True), torch.ones(2, 3, 8)
    layer(x)
    mapped = torch.vmap(lambda x: layer(x[None], training=True)[0], randomness="same")
    found = numpy(mapped(x))
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.isfinite(found).all()


@pytest.mark.skipif(BACKEND != "jax", reason="of its loops")
def test_a_hessian_through_skipped_blocks():
    import jax

    x = keras.random.normal((1, 9, 1, 2), seed=1)

    def total(x, kernel="blockwise"):
        output = ops.attend(x, x, x, pattern=patterns.SlidingWindow(3, 0), kernel=kernel)
        return keras.ops.sum(output**2)

    step = keras.random.normal(x.shape, seed=2)
    with problems.at_once(16):
        found, expected = (
            jax.jit(lambda x, k=k: forward(lambda x: gradient(lambda x: total(x, k), x), x, step))(
                x
            )
            for k in ("blockwise", "reference")
        )
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(BACKEND != "jax", reason="JAX's tools")
def test_forward_derivatives_within_shards():
    import jax
    from jax.sharding import PartitionSpec

    (case,) = (case for case in CASES if str(case) == "SelfAttention")
    p, shard = Problem(case), PartitionSpec("devices")

    def along(x, step):
        linear = jax.linearize(p.output, x)[1](step)
        return jax.jvp(p.output, (x,), (step,))[1], linear

    mesh = jax.sharding.Mesh(jax.devices()[:1], ("devices",))
    mapped = jax.shard_map(along, mesh=mesh, in_specs=(shard, shard), out_specs=(shard, shard))
    expected, _ = jax.jit(along)(p.x, p.step)
    for found in jax.jit(mapped)(p.x, p.step):
        close(found, expected)
