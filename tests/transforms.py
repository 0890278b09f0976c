"""The table of transforms in docs/backends.md, and layers as functions that a framework transforms.

A cell that begins with "yes" must work; what follows it says by what, or where not. One that begins
with "no" quotes the error.
"""

import ast
import pathlib
import re

import keras
import numpy as np
import pytest

from tests.arrays import numpy
from tests.conformance import CASES, outputs_of

BACKEND = keras.backend.backend()
TESTS = pathlib.Path(__file__).parent
PAGE = TESTS.parent / "docs" / "backends.md"
COLUMNS = ("tensorflow", "jax", "torch")
FLOATS = [case for case in CASES if case.float_inputs]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def table():
    """The cells of this backend, by the name of their row."""
    _, text = PAGE.read_text(encoding="utf-8").split("\n## Transforms\n", 1)
    rows = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    column = 1 + COLUMNS.index(BACKEND)
    return {name: cell[column] for cell in cells for name in cell[0].split("; ")}


CELLS = table()


def check(row, run):
    """`run()` works if the row says "yes", and otherwise fails with the error that it quotes."""
    cell = CELLS[row]
    if cell.startswith("yes"):
        run()
        return
    assert cell.startswith("no: "), (row, cell)
    messages = "|".join(map(re.escape, re.findall(r'"([^"]+)"', cell)))
    assert messages, (row, cell)
    with pytest.raises(Exception, match=messages) as caught:
        run()
    assert not isinstance(caught.value, AssertionError)


def checked_rows():
    """The rows that are named in tests with `check`."""
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    texts = [text for text in texts if "from tests.transforms import" in text]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    return CELLS.keys() & {node.value for node in nodes if isinstance(node, ast.Constant)}


class Problem:
    """A layer as a function of its first input, another array of that shape, and a row of it."""

    def __init__(self, case, layer=None):
        self.case, self.layer = case, layer or case.make()
        self.arrays = [keras.ops.convert_to_tensor(array) for array in case.arrays()]
        case.call(self.layer, self.arrays)
        self.x, *self.rest = self.arrays
        rng = np.random.default_rng(4)
        self.step = keras.ops.convert_to_tensor(rng.normal(size=self.x.shape).astype("float32"))

    def call(self, *arrays):
        with keras.StatelessScope():
            return outputs_of(self.case.call(self.layer, arrays))[0]

    def output(self, x):
        return self.call(x, *self.rest)

    def total(self, x):
        # Of cubes: the squares of what is normalized have one sum.
        return keras.ops.sum(self.output(x) ** 3)

    def row(self, x):
        return self.call(x[None], *(array[:1] for array in self.rest))[0]

    def two(self):
        """The arrays as another batch, of five rows."""
        return [keras.ops.concatenate([array, array])[:5] for array in self.arrays]


def close(found, expected, tolerance=1e-4):
    found, expected = numpy(found), numpy(expected)
    scale = 1 + np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


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
