"""PyTorch's loops in compiled functions: one step as a graph of PyTorch's own operators.

Where Keras and Python spend several times the time of the operators, the graph leaves the
operators. `torch.compile` of Keras's layers would break at every one of them, so the operators are
recorded instead, on tensors without values (`make_fx`), and replayed.
"""

import itertools
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


class _Running(threading.local):
    """In this thread: the call of a `Program` that runs, and whether it records a step."""

    call: tuple[typing.Any, ...] | None = None
    recording = False


_running = _Running()
# PyTorch records by replacing functions of its own, for all threads.
_one_at_a_time = threading.RLock()


class Program:
    """`function` without gradients, a step of each of its loops recorded once for each shape."""

    def __init__(self, function, layer):
        self.function, self.layer = function, layer
        self.steps = {}

    def __call__(self, *arrays):
        outer = _running.call
        _running.call = self, _kinds(arrays), itertools.count()
        try:
            with torch.no_grad():
                return self.function(*arrays)
        finally:
            _running.call = outer


def recording():
    """Whether the code runs on tensors without values, to be recorded."""
    return _running.recording


def while_loop(cond, body, carry, constants):
    """`backend.while_loop`, by the graph of a step that this or an earlier call recorded."""
    if _running.call is None:
        return keras.ops.while_loop(cond, lambda *carry: body(constants, *carry), carry)
    (program, kinds, loops), carry = _running.call, tuple(carry)
    key = (kinds, next(loops), body.__code__, _kinds((carry, constants)))
    step = program.steps.get(key)
    if step is None or not _are_same(step.variables, _variables(program.layer)):
        if not cond(*carry):
            return carry
        # Once as it is: what is wrong in the user's step raises here, and not in a recording.
        carry = tuple(body(constants, *carry))
        with _one_at_a_time:
            step = _recorded(body, carry, constants, program.layer)
        if step is None:
            while cond(*carry):
                carry = tuple(body(constants, *carry))
            return carry
        if step.repeatable:
            program.steps[key] = step
    arrays, graphs = _arrays(carry), step.graphs
    for index in graphs.written:
        arrays[index] = arrays[index].clone()
    needed = graphs.before(*_arrays(constants))
    while cond(*_like(carry, arrays)):
        arrays = graphs.step(*arrays, *needed)
    return _like(carry, arrays)


class _Step(typing.NamedTuple):
    """The graphs of a step of a layer, and the tensors that were the layer's variables."""

    graphs: torch_graphs.Graphs
    variables: list
    repeatable: bool


def _are_same(first, second):
    """Whether two lists are of the same tensors: quantization, for one, replaces variables."""
    return len(first) == len(second) and all(map(operator.is_, first, second))


def _recorded(body, carry, constants, layer):
    """The `_Step` of `body`, or None, with a warning, if it needs the values of tensors."""

    def step(*arrays):
        carried, fixed = _like((carry, constants), arrays)
        return _arrays(body(fixed, *carried))

    outer = _running.call, _running.recording
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
    return _Step(graphs, variables, repeatable)


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
