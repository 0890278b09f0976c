"""PyTorch's loops in compiled functions: one step as a graph of PyTorch's own operators.

Where Keras and Python spend several times the time of the operators, the graph leaves the
operators. `torch.compile` of Keras's layers would break at every one of them, so the operators are
recorded instead, on tensors without values (`make_fx`), and replayed.
"""

import operator
import os
import threading
import traceback
import typing
import warnings

import keras
import torch

from keras_attention.backend import torch_graphs

_FRAMEWORKS = tuple(os.path.dirname(module.__file__) + os.sep for module in (keras, torch))

# The call of a `Program` that runs in this thread, and whether it records a step.
_running = threading.local()
# PyTorch records by replacing functions of its own, for all threads.
_one_at_a_time = threading.RLock()


class Program:
    """`function` without gradients, a step of each of its loops recorded once for each shape."""

    def __init__(self, function, layer):
        self.function, self.layer = function, layer
        self.steps = {}

    def __call__(self, *arrays):
        outer = getattr(_running, "call", None)
        _running.call = _Call(self, _kinds(arrays))
        try:
            with torch.no_grad():
                return self.function(*arrays)
        finally:
            _running.call = outer


def while_loop(cond, body, carry, constants):
    """`backend.while_loop`."""
    call = getattr(_running, "call", None)
    if call is None:
        return keras.ops.while_loop(cond, lambda *carry: body(constants, *carry), carry)
    return call.loop(cond, body, carry, constants)


def recording():
    """Whether the code runs on tensors without values, to be recorded."""
    return getattr(_running, "recording", False)


class _Call:
    def __init__(self, program, kinds):
        self.program, self.kinds, self.loops = program, kinds, 0

    def loop(self, cond, body, carry, constants):
        """`keras.ops.while_loop`, by the graph of a step that this or an earlier call recorded."""
        carry = tuple(carry)
        key = (self.kinds, self.loops, body.__code__, _kinds((carry, constants)))
        self.loops += 1
        step = self.program.steps.get(key)
        if step is None or not step.is_for(self.program.layer):
            if not cond(*carry):
                return carry
            # Once as it is: what is wrong in the user's step raises here, and not in a recording.
            carry = tuple(body(constants, *carry))
            with _one_at_a_time:
                step = _recorded(body, carry, constants, self.program.layer)
            if step is None:
                while cond(*carry):
                    carry = tuple(body(constants, *carry))
                return carry
            if step.repeatable:
                self.program.steps[key] = step
        arrays, fixed = _arrays(carry), _arrays(constants)
        graph, needed = step.prepared(arrays, fixed)
        while cond(*_like(carry, arrays)):
            arrays = graph(*arrays, *needed)
        return _like(carry, arrays)


class _Step(typing.NamedTuple):
    """The graph of a step of a layer, and the tensors that were the layer's variables.

    `graphs` are two graphs in place of `graph`, or None.
    """

    graph: torch.fx.GraphModule
    graphs: torch_graphs.Graphs | None
    variables: list
    repeatable: bool

    def prepared(self, carried, constants):
        """The graph of a loop that starts with these arrays, and its arguments beside them."""
        if self.graphs is None:
            return self.graph, constants
        for index in self.graphs.written:
            carried[index] = carried[index].clone()
        return self.graphs.step, self.graphs.before(*constants)

    def is_for(self, layer):
        """Whether the layer has these variables still: quantization, for one, replaces them."""
        now = _variables(layer)
        return len(now) == len(self.variables) and all(map(operator.is_, now, self.variables))


def _recorded(body, carry, constants, layer):
    """The `_Step` of `body`, or None, with a warning, if it needs the values of tensors."""

    def step(*arrays):
        carried, fixed = _like((carry, constants), arrays)
        return _arrays(body(fixed, *carried))

    outer = _running.call, recording()
    _running.call, _running.recording = None, True
    try:
        # Arrays of its own, of which only sizes matter: one that is passed twice by chance would be
        # taken to be the same array in every step.
        arrays = list(map(torch.empty_like, (*_arrays(carry), *_arrays(constants))))
        graph = torch_graphs.record(step, arrays)
    # Whatever the step does with values, `int` or NumPy, has its own error. It has run once.
    except Exception as error:
        warnings.warn(
            "A step of a compiled function reads values of tensors, so that it runs uncompiled: "
            f"{_cause(error)}",
            stacklevel=2,
        )
        return None
    finally:
        _running.call, _running.recording = outer
    variables = _variables(layer)
    known, repeatable = {id(tensor) for tensor in variables}, True
    for node in graph.graph.nodes:
        # A variable, or a number in the code, or else an array that another call may compute anew.
        if node.op == "get_attr" and id(getattr(graph, node.target)) not in known:
            copied = torch.ops.aten.lift_fresh_copy.default
            repeatable = repeatable and all(user.target is copied for user in node.users)
    graphs = torch_graphs.optimized(graph, arrays, len(_arrays(carry)))
    return _Step(graph, graphs, variables, repeatable)


def _cause(error):
    """The error that ended a recording, and the last line that is not PyTorch's or Keras's."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    frames = traceback.extract_tb(error.__traceback__)
    own = [x for x in frames if not x.filename.startswith(_FRAMEWORKS)] or frames
    where = f"in {own[-1].name!r}, {own[-1].filename}:{own[-1].lineno}: {own[-1].line}"
    return f"{type(error).__name__}{text and ': '}{text} ({where})"


def _variables(layer):
    return [variable.value for variable in layer.variables]


def _arrays(nested):
    """The tensors in a nested structure, in the order in memory for which a graph is recorded."""
    leaves = keras.tree.flatten(nested)
    return [keras.ops.convert_to_tensor(x).contiguous() for x in leaves if x is not None]


def _like(nested, arrays):
    """The nested structure, with these arrays for its own; it may have leaves of None."""
    rest = iter(arrays)
    leaves = [None if x is None else next(rest) for x in keras.tree.flatten(nested)]
    return keras.tree.pack_sequence_as(nested, leaves)


def _kinds(nested):
    """The structure, shapes and dtypes: for what a graph is valid."""

    def kind(array):
        return None if array is None else (tuple(array.shape), array.dtype, array.device)

    return repr(keras.tree.map_structure(kind, nested))
