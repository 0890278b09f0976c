"""The table of transforms in docs/backends.md: each cell, over the cases of the conformance suite.

A cell that begins with "yes" must work; what follows it says by what, or where not.
"""

import copy
import pathlib
import warnings

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import ops, patterns
from keras_attention.kernels import blockwise
from tests.conformance import alone, numpy, outputs_of
from tests.gradients import gradients
from tests.layers.conformance_cases import CASES

BACKEND = keras.backend.backend()
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "backends.md"
COLUMNS = ("tensorflow", "jax", "torch")
FLOATS = [case for case in CASES if case.float_inputs]
# JAX compiles these, and traces the others.
COMPILED = {"MultiHeadAttention-grouped", "RelativePositionAttention"}


def table():
    """The cells of this backend, by the name of their row."""
    _, text = PAGE.read_text(encoding="utf-8").split("\n## Transforms\n", 1)
    rows = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")][1:]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return {cell[0]: cell[1 + COLUMNS.index(BACKEND)] for cell in cells}


CELLS = table()


def check(row, run):
    """`run()`, whose row says "yes"."""
    assert CELLS[row].startswith("yes"), row
    run()


class Problem:
    """A layer as a function of its first input, another array of that shape, and a row of it."""

    def __init__(self, case):
        self.case, self.layer = case, case.make()
        self.arrays = [keras.ops.convert_to_tensor(array) for array in case.arrays()]
        case.call(self.layer, self.arrays)
        self.x, *self.rest = self.arrays
        rng = np.random.default_rng(4)
        self.step = keras.ops.convert_to_tensor(rng.normal(size=self.x.shape).astype("float32"))

    def output(self, x):
        with keras.StatelessScope():
            return outputs_of(self.case.call(self.layer, [x, *self.rest]))[0]

    def total(self, x):
        return keras.ops.sum(keras.ops.square(self.output(x)))

    def row(self, x):
        with keras.StatelessScope():
            rest = [array[:1] for array in self.rest]
            return outputs_of(self.case.call(self.layer, [x[None], *rest]))[0][0]


# These take long on TensorFlow, where two are enough for each change.
LONG = [
    pytest.param(case, marks=[pytest.mark.slow] * (BACKEND == "tensorflow"), id=str(case))
    if str(case) not in COMPILED
    else pytest.param(case, id=str(case))
    for case in CASES
]
every_case = pytest.mark.parametrize("case", FLOATS, ids=str)


def compute(case, function, *arrays):
    """`function` of arrays; on JAX it is compiled, or only traced."""
    if BACKEND != "jax":
        return function(*arrays)
    import jax

    return (jax.jit if str(case) in COMPILED else jax.make_jaxpr)(function)(*arrays)


def close(case, found, expected):
    if BACKEND == "jax" and str(case) not in COMPILED:
        return
    expected = numpy(expected() if callable(expected) else expected)
    scale = 1 + np.abs(expected).max()
    np.testing.assert_allclose(numpy(found), expected, rtol=0, atol=1e-4 * scale)


# Each framework's own tools


def gradient(function, x):
    if BACKEND == "jax":
        import jax

        return jax.grad(function)(x)
    if BACKEND == "torch":
        import torch

        return torch.func.grad(function)(x)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        found = function(x)
    return tape.gradient(found, x, unconnected_gradients="zero")


def forward(function, x, step):
    if BACKEND == "jax":
        import jax

        return jax.jvp(function, (x,), (step,))[1]
    if BACKEND == "torch":
        import torch

        return torch.func.jvp(function, (x,), (step,))[1]
    import tensorflow as tf

    with tf.autodiff.ForwardAccumulator(x, step) as accumulator:
        found = function(x)
    return accumulator.jvp(found, unconnected_gradients="zero")


def dot(one, other):
    return keras.ops.sum(one * other)


@pytest.mark.ci
@every_case
def test_gradient(case):
    """The gradient by the framework's function, against that by its tape or graph."""
    if BACKEND == "jax" and str(case) not in COMPILED:
        pytest.skip("traced with its derivative, below")
    p = Problem(case)

    def run():
        found = compute(case, lambda x: gradient(p.total, x), p.x)
        close(case, found, lambda: gradients(p.total, [p.x])[0])

    check("gradient", run)


@pytest.mark.parametrize("case", [c for c in LONG if c.values[0].float_inputs])
def test_second_derivative(case):
    """Of a gradient: reverse over reverse is forward over reverse."""
    p = Problem(case)

    def run():
        def along(x):
            return dot(gradient(p.total, x), p.step)

        def over(x):
            return forward(lambda x: gradient(p.total, x), x, p.step)

        close(case, compute(case, lambda x: gradient(along, x), p.x), compute(case, over, p.x))

    check("second derivative", run)


@pytest.mark.ci
@every_case
def test_forward_derivative(case):
    """Along a step, against the gradient."""
    p = Problem(case)

    def run():
        like = p.output(p.x)
        upstream = np.random.default_rng(5).normal(size=like.shape).astype("float32")
        upstream = keras.ops.convert_to_tensor(upstream)

        def both(x):
            back = gradient(lambda x: dot(p.output(x), upstream), x)
            return dot(forward(p.output, x, p.step), upstream), dot(back, p.step)

        found = compute(case, both, p.x)
        if BACKEND != "jax" or str(case) in COMPILED:
            close(case, *found)

    check("forward derivative", run)


@pytest.mark.ci
@every_case
def test_map(case):
    """`keras.ops.vectorized_map` over the rows of a batch."""
    p = Problem(case)
    p.rest = [keras.ops.repeat(array[:1], len(p.x), axis=0) for array in p.rest]

    def run():
        found = compute(case, lambda x: keras.ops.vectorized_map(p.row, x), p.x)
        close(case, found, lambda: p.output(p.x))

    check("map", run)


@pytest.mark.parametrize("case", LONG)
def test_trace(case, request):
    """A function recorded for one batch is right for another, where a recording can be."""
    p = Problem(case)
    two = [keras.ops.concatenate([array, array])[:5] for array in p.arrays]

    def call(*arrays):
        with keras.StatelessScope():
            return outputs_of(case.call(p.layer, arrays))[0]

    def run():
        if BACKEND == "torch":
            request.getfixturevalue("recwarn")
            recorded = record(p.layer, call, p.arrays)
        elif BACKEND == "tensorflow":
            import tensorflow as tf

            specs = [tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in p.arrays]
            recorded = tf.function(call, input_signature=specs)
        else:
            import jax

            jax.make_jaxpr(call)(*two)
            return
        for arrays in (p.arrays, two):
            np.testing.assert_allclose(
                numpy(recorded(*arrays)), numpy(call(*arrays)), rtol=1e-4, atol=1e-5
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


@pytest.mark.ci
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("row", ["clone_model", "deepcopy"])
def test_copies(case, row):
    """A copy has the same outputs, and weights of its own."""

    def run():
        model, given = case.model(), alone(case.arrays())
        copied = keras.models.clone_model(model) if row == "clone_model" else copy.deepcopy(model)
        copied.set_weights(model.get_weights())
        found, expected = (numpy(outputs_of(m(given))[0]) for m in (copied, model))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        for mine, other in zip(copied.weights, model.weights, strict=True):
            assert mine is not other
        if model.weights:
            copied.set_weights([weight + 1 for weight in model.get_weights()])
            np.testing.assert_array_equal(numpy(outputs_of(model(given))[0]), expected)

    check(row, run)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's tools")
@every_case
def test_the_tools_of_autograd(case):
    """Jacobians by vectorized gradients, tangents beside arrays, and gradients of gradients."""
    import torch
    from torch.nn import attention

    p = Problem(case)
    x, step = p.x[:1, :2], p.step[:1, :2]
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
def test_a_hessian_through_skipped_blocks(monkeypatch):
    import jax

    monkeypatch.setattr(blockwise, "ELEMENTS", {False: 16, True: 16})
    x = keras.random.normal((1, 9, 1, 2), seed=1)

    def total(x, kernel="blockwise"):
        output = ops.attend(x, x, x, pattern=patterns.SlidingWindow(3, 0), kernel=kernel)
        return keras.ops.sum(output**2)

    step = keras.random.normal(x.shape, seed=2)
    found, expected = (
        jax.jit(lambda x, k=k: forward(lambda x: gradient(lambda x: total(x, k), x), x, step))(x)
        for k in ("blockwise", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


# What PyTorch's exporter of recorded programs cannot write; docs/exporting.md says which.
UNWRITTEN = {"RMSNorm": "rms_norm", "RelativePositionAttention": "ravel"}


@pytest.mark.skipif(BACKEND != "torch", reason="tests/test_export.py has TensorFlow's")
@pytest.mark.parametrize("name", ["Attention", "SelfAttention", "AttentionPooling", *UNWRITTEN])
def test_onnx_of_pytorch(name, tmp_path):
    """`model.export`, for any batch size."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    (case,) = (case for case in CASES if str(case) == name)
    symbols, layer = case.symbols(), case.make()
    model = keras.Model(alone(symbols), outputs_of(case.call(layer, symbols))[0])
    arrays = case.arrays()
    model(alone(arrays))
    path = str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in UNWRITTEN:
            with pytest.raises(Exception, match=UNWRITTEN[name]):
                model.export(path, format="onnx", verbose=False)
            return
        model.export(path, format="onnx", verbose=False)
    session = runtime.InferenceSession(path)
    for given in (arrays, [np.concatenate([array, array])[:5] for array in arrays]):
        named = {node.name: x for node, x in zip(session.get_inputs(), given, strict=True)}
        (found,) = session.run(None, named)
        np.testing.assert_allclose(found, numpy(model(alone(given))), rtol=1e-4, atol=1e-5)
