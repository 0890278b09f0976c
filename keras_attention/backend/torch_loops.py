"""PyTorch's loops in compiled functions: one step as a graph of PyTorch's own operators.

Where Keras and Python spend several times the time of the operators, the graph leaves the
operators. `torch.compile` of Keras's layers would break at every one of them, so the operators are
recorded instead, on tensors without values (`make_fx`), and replayed.

A graph is optimized as XLA does on the other backends: what does not depend on what a loop carries
is computed once, before it; an expression that occurs twice is computed once; and an array of which
a step changes a few elements is written in place, not copied. This needs a graph without mutations,
whose nodes are expressions: PyTorch makes one of any (`torch.func.functionalize`). Aliases are
known from the schemas of its operators.
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
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

# Of which the result may be the argument itself.
_COPIES = (aten.clone.default, aten.view.default, aten.expand.default)
_FRAMEWORKS = tuple(os.path.dirname(module.__file__) + os.sep for module in (keras, torch))


class _Running(threading.local):
    """In this thread: the call of a `Program` that runs, and whether it records a step."""

    call: tuple[typing.Any, ...] | None = None
    recording = False
    # What takes the place of a loop while the program around it is recorded.
    loop: typing.Any = None


_running = _Running()
# PyTorch records by replacing functions of its own, for all threads.
_one_at_a_time = threading.RLock()


class Program:
    """`function` without gradients, a step of each of its loops recorded once for each shape.

    If it has one loop or none, reads no values and has no effects, what is before and after the
    loop is recorded too.
    """

    def __init__(self, function, layer):
        self.function, self.layer = function, layer
        self.steps, self.wholes = {}, {}

    def __call__(self, *arrays):
        outer, kinds, carries = _running.call, _kinds(arrays), []
        _running.call = self, kinds, itertools.count(), carries
        try:
            with torch.no_grad():
                now, whole = _variables(self.layer), self.wholes.get(kinds)
                if whole and [*map(id, now)] == [*map(id, whole.variables)]:
                    found = whole.run(arrays)
                    if found is not None:
                        return found
                found = self.function(*arrays)
                # A function that cannot be recorded is not tried again.
                if whole is not None or kinds not in self.wholes:
                    with _one_at_a_time:
                        self.wholes[kinds] = _recorded_whole(self, arrays, carries)
                return found
        finally:
            _running.call = outer


def running():
    """Whether a `Program` runs."""
    return _running.call is not None


def recording():
    """Whether the code runs on tensors without values, to be recorded."""
    return _running.recording


def while_loop(cond, body, carry, constants):
    """`backend.while_loop`, by the graph of a step that this or an earlier call recorded."""
    if _running.call is None:
        return keras.ops.while_loop(cond, lambda *carry: body(constants, *carry), carry)
    if _running.recording:
        return _running.loop(cond, body, tuple(carry), constants)
    (program, kinds, loops, carries), carry = _running.call, tuple(carry)
    key = (kinds, next(loops), body.__code__, _kinds((carry, constants)))
    step = program.steps.get(key)
    carries.append((key, carry))
    # The layer may have other variables since: quantization, for one, replaces them.
    if step is None or [*map(id, step.variables)] != [*map(id, _variables(program.layer))]:
        if not cond(*carry):
            carries[-1] = None, carry
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


class Graphs(typing.NamedTuple):
    """A step as two graphs.

    `before(*constants)` returns what every step needs, and `step(*carried, *needed)` the arrays
    that the loop carries next. The step overwrites `written`, a set of indices of carried arrays,
    which must be the loop's own, and share no memory.
    """

    before: fx.GraphModule
    step: fx.GraphModule
    written: frozenset


class _Step(typing.NamedTuple):
    """The graphs of a step of a layer, and the tensors that were the layer's variables."""

    graphs: Graphs
    variables: list
    repeatable: bool


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
        graph = _record(step, arrays)
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
    repeatable = _reads_only(graph, variables)
    graphs = _optimized(graph, arrays, len(_arrays(carry)))
    return _Step(graphs, variables, repeatable)


def _reads_only(module, variables):
    """Whether a graph has no arrays but these, and numbers in the code."""
    known, copied = {id(tensor) for tensor in variables}, aten.lift_fresh_copy.default
    return all(
        # Another array is one that another call may compute anew.
        id(getattr(module, node.target)) in known or all(x.target is copied for x in node.users)
        for node in module.graph.nodes
        if node.op == "get_attr"
    )


class _Whole(typing.NamedTuple):
    """A program as graphs: before its loop, and of what the loop carries, whether it goes on.

    `before(*arrays)` returns what the others need after the carried arrays: `start`, which returns
    what the loop begins with, `going`, and `end`, which returns the results, `like` these.
    """

    before: fx.GraphModule
    start: fx.GraphModule
    going: fx.GraphModule
    end: fx.GraphModule
    step: _Step | None
    carried: int
    variables: list
    like: typing.Any

    def run(self, arrays):
        """The results; or None where the loop has a step, and had none when it was recorded."""
        needed = self.before(*_arrays(arrays))
        begun = self.start(*[None] * self.carried, *needed)
        carry, constants = begun[: self.carried], begun[self.carried :]
        if self.step is None and carry and self.going(*carry, *needed)[0]:
            return None
        if self.step is not None:
            graphs = self.step.graphs
            for index in graphs.written:
                carry[index] = carry[index].clone()
            of_step = graphs.before(*constants)
            while self.going(*carry, *needed)[0]:
                carry = graphs.step(*carry, *of_step)
        return _like(self.like, self.end(*carry, *needed))


def _recorded_whole(program, arrays, carries):
    """The `_Whole` of a program that has run, with these loops; or None."""
    steps = [program.steps.get(key) for key, _ in carries]
    if len(steps) > 1 or any(key and not program.steps.get(key) for key, _ in carries):
        return None
    of_loop = _arrays(carries[0][1]) if carries else []
    count, begun, like = len(of_loop), [], []

    def whole(*flat):
        def loop(cond, body, carry, constants):
            after = _like(carry, flat[:count])
            begun.append((_arrays((carry, constants)), [cond(*after)]))
            return after

        _running.loop = loop
        begun.clear()
        found = program.function(*_like(arrays, flat[count:]))
        like[:] = [keras.tree.map_structure(lambda x: None if x is None else 0, found)]
        first, going = begun[0] if begun else ([], [])
        return [*first, *going, *_arrays(found)]

    outer, _running.recording = _running.recording, True
    try:
        given = list(map(torch.empty_like, (*of_loop, *_arrays(arrays))))
        module = _record(whole, given)
        variables = _variables(program.layer)
        if len(begun) != len(steps) or not _reads_only(module, variables):
            return None
        module = _functional(module, given)
    # It reads values, which only some programs can do.
    except Exception:
        return None
    finally:
        _running.recording, _running.loop = outer, None
    if module is None or not all(map(_is_repeatable, module.graph.nodes)):
        return None
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    before = fx.GraphModule(module, _split(module.graph, inputs[:count]))
    first = len(begun[0][0]) if begun else 0
    parts = slice(0, first), slice(first, first + len(begun)), slice(first + len(begun), None)
    graphs = [_returning(module, part) for part in parts]
    return _Whole(before, *graphs, steps[0] if steps else None, count, variables, like[0])


def _returning(module, part):
    """The graph that returns a part of the results."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {})[part])
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


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


def _record(function, arrays):
    """The operators that `function` calls for arrays of these sizes, as a graph."""
    # Tensors that it closes over stay themselves.
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arrays)


def _optimized(module, arrays, carried):
    """The `Graphs` of a step of `arrays`, of which `carried` change; it stays if it has effects."""
    plain = Graphs(lambda *constants: constants, module, frozenset())
    module = _functional(module, arrays)
    if module is None:
        return plain
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    before = _split(graph, inputs[:carried])
    written = _write_in_place(graph, carried)
    module.recompile()
    return Graphs(fx.GraphModule(module, before), module, written)


def _functional(module, arrays):
    """A graph of expressions, each of which is computed once; or None if it has effects."""
    for node in module.graph.nodes:
        copy = node.args[0] if node.target is aten.index_put_.default else None
        # Keras writes into a copy, which nobody else reads.
        if copy is not None and copy.target is aten.clone.default and len(copy.users) == 1:
            node.target = aten.index_put.default
    if not all(map(_is_expression, module.graph.nodes)):
        try:
            module = _record(torch.func.functionalize(module), arrays)
        except RuntimeError:
            return None
        if not all(map(_is_expression, module.graph.nodes)):
            return None
    _remove_repetitions(module)
    module.graph.eliminate_dead_code()
    return module


def _is_expression(node):
    """Whether a node only computes its output."""
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable


def _is_repeatable(node):
    """Whether an expression has the same value each time. Those with dropout are not told apart."""
    random, target = torch.Tag.nondeterministic_seeded, node.target
    if target is aten._scaled_dot_product_flash_attention_for_cpu.default:
        # The fourth argument is its dropout.
        return not any(node.args[3:4])
    return not isinstance(target, torch._ops.OpOverload) or random not in target.tags


def _remove_repetitions(module):
    """Computes an expression once, and reads what is copied itself: nobody writes to the copy."""
    first = {}
    for node in list(module.graph.nodes):
        key, known = None, node
        if node.target is aten.lift_fresh_copy.default:
            # A constant in the code of the step. Equal ones become one node.
            known, tensor = node.args[0], getattr(module, node.args[0].target)
            if tensor.numel() <= 4096:
                key = tensor.dtype, tensor.device, tensor.shape, tensor.tolist()
        elif node.target in _COPIES and _is_as_its_first_argument(node):
            known = node.args[0]
        elif node.target is aten.where.self and _is_masked_alike(node):
            known = node.args[1]
        elif node.op == "get_attr":
            key = node.target
        elif node.op == "call_function" and _is_repeatable(node):
            key = node.target, node.args, node.kwargs
        if key is not None:
            known = first.setdefault(repr(key), known)
        if known is not node:
            node.replace_all_uses_with(known)
            module.graph.erase_node(node)


def _is_as_its_first_argument(node):
    """Whether a copy or a view has all elements of its argument, in the same places."""
    value, given = node.meta["val"], node.args[0].meta["val"]
    return value.shape == given.shape and value.stride() == given.stride()


def _is_masked_alike(node):
    """Whether a selection by a mask is of a selection by the same, with the same elsewhere."""
    mask, inner, other = node.args
    masked = inner.op == "call_function" and inner.target is aten.where.self
    same = masked and inner.args[0] is mask and inner.args[2] is other
    return same and node.meta["val"].shape == inner.meta["val"].shape


def _split(graph, carried):
    """Moves nodes that depend on no carried one into another graph; this one gets their values."""
    nodes, before, copies, moved = list(graph.nodes), fx.Graph(), {}, {}
    for node in nodes:
        constant = moved.keys() >= set(node.all_input_nodes) and node not in carried
        if constant and (node.op != "call_function" or _is_repeatable(node)):
            moved[node] = None
    moved.pop(nodes[-1], None)  # The output.
    needed = [node for node in moved if not moved.keys() >= node.users.keys()]
    for node in moved:
        copies[node] = before.node_copy(node, copies.__getitem__)
    before.output([copies[node] for node in needed])
    with graph.inserting_before(next(node for node in nodes if node.op != "placeholder")):
        for node in needed:
            given = graph.placeholder(node.name)
            given.meta = node.meta
            node.replace_all_uses_with(given)
    for node in reversed(list(moved)):
        graph.erase_node(node)
    return before


def _write_in_place(graph, carried):
    """Has the step write into the arrays it carries, and returns which it overwrites."""
    nodes = list(graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    inputs = [node for node in nodes if node.op == "placeholder"]
    roots = {}
    for node in nodes:
        source = _source(node)
        roots[node] = node if source is None else roots[source]
    ends = [roots[node] for node in nodes[-1].args[0]]

    def is_own(index):
        """Whether carried array `index` shares no memory, in this step and all later ones."""
        end = ends[index]
        fresh = end.op == "call_function" or end is inputs[index]
        return fresh and ends.count(end) == 1

    written = set()
    for node in nodes:
        if node.target is not aten.index_put.default or roots[node.args[0]] not in inputs[:carried]:
            continue
        index = inputs.index(roots[node.args[0]])
        # Neither a later node, nor the output, nor this one may need the former elements.
        others = []
        fx.node.map_arg((node.args[1:], node.kwargs), others.append)
        aliases = [other for other in nodes if roots[other] is inputs[index]]
        last = max(place[user] for alias in aliases for user in alias.users)
        unread = last == place[node] and inputs[index] not in map(roots.get, others)
        # Expanded elements have one place for several.
        dense = node.args[0].meta["val"].is_contiguous()
        if is_own(index) and unread and dense:
            node.target = aten.index_put_.default
            written.add(index)
    return frozenset(written)


def _source(node):
    """The node whose memory an expression's output may be, or None if it has memory of its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        return _source(node.args[0])
    schema = node.target._schema
    if not any(output.alias_info for output in schema.returns):
        return None
    # PyTorch's views are all of their first argument.
    return node.args[0]
