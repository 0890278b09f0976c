"""Derivatives, maps, recordings and copies of layers, over the cases of the conformance suite."""

import copy
import inspect
import warnings

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import ops, patterns
from tests import problems
from tests.arrays import numpy
from tests.compiled import compiled
from tests.conformance import CASES, alone, outputs_of
from tests.gradients import gradients
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
# JAX compiles these derivatives of derivatives, and traces the others.
COMPILED = {"every-option", "RelativePositionAttention"}
# These take long on TensorFlow, where two are enough for each change.
LONG = [
    pytest.param(case, marks=[pytest.mark.slow] * (BACKEND == "tensorflow"), id=str(case))
    if str(case) not in COMPILED
    else pytest.param(case, id=str(case))
    for case in CASES
]


def test_every_row_is_checked():
    assert checked_rows() == set(CELLS)


def dot(one, other):
    return keras.ops.sum(one * other)


def first_derivatives(case):
    """What a problem's transforms give, and what they must: on JAX by one program.

    The transforms are of a gradient, against that of the tape or graph; a derivative along a step,
    against the gradient; and a map over the rows of a batch, against a call.
    """
    # Differences step over the corner of ReLU.
    smooth = "activation" in inspect.signature(case.layer).parameters
    p = Problem(case, case.make(activation="gelu") if smooth else None)
    one = Problem(case, p.layer)
    one.rest = [keras.ops.repeat(array[:1], len(p.x), axis=0) for array in p.rest]

    def mapped(x):
        return {"map": (keras.ops.vectorized_map(one.row, x), one.output(x))}

    if not case.float_inputs:
        return compiled(mapped, p.x)
    like = p.output(p.x)
    upstream = np.random.default_rng(5).normal(size=like.shape).astype("float32")
    upstream = keras.ops.convert_to_tensor(upstream)

    def every(x):
        back = gradient(lambda x: dot(p.output(x), upstream), x)
        along = dot(forward(p.output, x, p.step), upstream), dot(back, p.step)
        found = {"forward": along, **mapped(x)}
        if BACKEND != "jax":
            other = gradients(lambda x: dot(p.output(x), upstream), [x])[0]
            return {"gradient": (back, other), **found}
        if case.layer is not keras_attention.HardAttention:  # whose gradient is not its own
            # Norms of heads that are nearly 0 bend much within a longer step.
            near = [p.output(x + sign * 1e-3 * p.step) for sign in (1, -1)]
            found["gradient"] = along[1], dot(near[0] - near[1], upstream) / 2e-3
        return found

    return compiled(every, p.x)


@pytest.mark.ci
@every_case
def test_gradient_forward_derivative_and_map(case):
    found = first_derivatives(case)
    if "gradient" in found:
        # On JAX, against differences.
        check("gradient", lambda: close(*found["gradient"], 2e-2 if BACKEND == "jax" else 1e-4))
    if case.float_inputs:
        check("forward derivative", lambda: close(*found["forward"]))
    check("map", lambda: close(*found["map"]))


def compute(case, function, *arrays):
    """`function` of arrays; on JAX it is compiled, or only traced."""
    if BACKEND != "jax":
        return function(*arrays)
    import jax

    return (jax.jit if str(case) in COMPILED else jax.make_jaxpr)(function)(*arrays)


@pytest.mark.parametrize("case", [c for c in LONG if c.values[0].float_inputs])
def test_second_derivative(case):
    """Of a gradient: reverse over reverse is forward over reverse."""
    p = Problem(case)

    def run():
        def along(x):
            return dot(gradient(p.total, x), p.step)

        def over(x):
            return forward(lambda x: gradient(p.total, x), x, p.step)

        found = [compute(case, function, p.x) for function in (lambda x: gradient(along, x), over)]
        if BACKEND != "jax" or str(case) in COMPILED:
            close(*found)

    check("second derivative", run)


@pytest.mark.parametrize("case", LONG)
def test_trace(case, request):
    """A function recorded for one batch is right for another, where a recording can be."""
    p = Problem(case)

    def run():
        if BACKEND == "torch":
            request.getfixturevalue("recwarn")
            recorded = record(p.layer, p.call, p.arrays)
        elif BACKEND == "tensorflow":
            import tensorflow as tf

            specs = [tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in p.arrays]
            recorded = tf.function(p.call, input_signature=specs)
        else:
            import jax

            jax.make_jaxpr(p.call)(*p.two())
            return
        for arrays in (p.arrays, p.two()):
            np.testing.assert_allclose(
                numpy(recorded(*arrays)), numpy(p.call(*arrays)), rtol=1e-4, atol=1e-5
            )

    check("trace", run)


def record(layer, call, arrays):
    """`call` by `torch.jit.trace`, which warns of each size that it takes for a constant."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, *arrays):
            return call(*arrays)

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return torch.jit.trace(Module(), tuple(arrays), check_trace=False)


def check_copy(case, copied_of):
    """A copy has the same outputs, and weights of its own."""
    model, given = case.model(), alone(case.arrays())
    copied = copied_of(model)
    copied.set_weights(model.get_weights())
    found, expected = (numpy(outputs_of(m(given))[0]) for m in (copied, model))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    for mine, other in zip(copied.weights, model.weights, strict=True):
        assert mine is not other
    if model.weights:
        copied.set_weights([weight + 1 for weight in model.get_weights()])
        np.testing.assert_array_equal(numpy(outputs_of(model(given))[0]), expected)


@pytest.mark.ci
@every_case
def test_copies(case):
    check("clone_model", lambda: check_copy(case, keras.models.clone_model))
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
