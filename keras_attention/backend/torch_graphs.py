"""What a compiler would do to a recorded step of a loop, before it is replayed on PyTorch.

XLA does all of it on the other backends: what does not depend on what a loop carries is computed
once, before it; an expression that occurs twice is computed once; and an array of which a step
changes a few elements is written in place, not copied.

All of this needs a graph without mutations, whose nodes are expressions: PyTorch makes one of any
(`torch.func.functionalize`). Aliases are known from the schemas of its operators.
"""

import operator
import typing

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten


class Graphs(typing.NamedTuple):
    """A step as two graphs.

    `before(*constants)` returns what every step needs, and `step(*carried, *needed)` the arrays
    that the loop carries next. The step overwrites `written`, a set of indices of carried arrays,
    which must be the loop's own, and share no memory.
    """

    before: fx.GraphModule
    step: fx.GraphModule
    written: frozenset


def record(function, arrays):
    """The operators that `function` calls for arrays of these sizes, as a graph."""
    # Tensors that it closes over stay themselves.
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arrays)


def optimized(module, arrays, carried):
    """The `Graphs` of a step of `arrays`, of which `carried` change; it stays if it has effects."""
    plain = Graphs(lambda *constants: constants, module, frozenset())
    try:
        module = record(torch.func.functionalize(module), arrays)
    except RuntimeError:
        return plain
    graph = module.graph
    if not all(map(_is_expression, graph.nodes)):
        return plain
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    _remove_repetitions(module)
    graph.eliminate_dead_code()
    before = _split(graph, _constants(graph, set(inputs[:carried])))
    written = _write_in_place(graph, carried)
    module.recompile()
    return Graphs(fx.GraphModule(module, before), module, written)


def _is_expression(node):
    """Whether a node only computes its output."""
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and not node.target._schema.is_mutable


def _is_repeatable(node):
    """Whether an expression has the same value each time. Those with dropout are not told apart."""
    random = torch.Tag.nondeterministic_seeded
    return node.target is operator.getitem or random not in node.target.tags


def _remove_repetitions(module):
    """Computes an expression once, and reads what is copied itself: nobody writes to the copy."""
    first = {}
    for node in list(module.graph.nodes):
        key, known = None, node
        if node.target is aten.lift_fresh_copy.default:
            # A constant in the code of the step. Equal numbers become one node.
            known, tensor = node.args[0], getattr(module, node.args[0].target)
            key = None if tensor.ndim else (tensor.dtype, tensor.device, tensor.item())
        elif node.target is aten.clone.default and _strides(node.args[0]) == _strides(node):
            known = node.args[0]
        elif node.op == "get_attr":
            key = node.target
        elif node.op == "call_function" and _is_repeatable(node):
            key = node.target, node.args, node.kwargs
        if key is not None:
            known = first.setdefault(repr(key), known)
        if known is not node:
            node.replace_all_uses_with(known)
            module.graph.erase_node(node)


def _strides(node):
    return node.meta["val"].stride()


def _constants(graph, carried):
    """The nodes that depend on no carried array."""
    found = set()
    for node in graph.nodes:
        if node in carried or node.op == "output":
            continue
        repeatable = node.op != "call_function" or _is_repeatable(node)
        if repeatable and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _split(graph, constant):
    """Moves constant nodes out of a graph, which gets their values, into another."""
    nodes, before, copies = list(graph.nodes), fx.Graph(), {}
    moved = [node for node in nodes if node in constant]
    needed = [node for node in moved if not constant.issuperset(node.users)]
    for node in moved:
        copies[node] = before.node_copy(node, copies.__getitem__)
    before.output([copies[node] for node in needed])
    with graph.inserting_before(next(node for node in nodes if node.op != "placeholder")):
        for node in needed:
            given = graph.placeholder(node.name)
            given.meta = node.meta
            node.replace_all_uses_with(given)
    for node in reversed(moved):
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
