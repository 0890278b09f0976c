"""What a compiled program reads, writes and multiplies, summed from its text.

Each fusion and each call reads its operands and writes its results once; what happens inside stays
in registers. Of an operand that is only sliced, the slice is read; of a result that is an array
updated in place, the update is written. All of it counts as often as the loops around it run.
"""

import collections
import dataclasses
import json
import math
import re

from benchmarks.gpu_programs.program_text import SIZES, computations

# An H100's (SXM): bytes of memory a second, and operations of its tensor cores a second; XLA
# multiplies float32 by TF32.
MEMORY = 3.35e12
OPERATIONS = {"bf16": 989e12, "f16": 989e12, "f32": 494e12, "f64": 67e12}

# Nothing is computed, or another line counts it.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "optimization-barrier", "opt-barrier"),
}
# The elements of the result are those of the operand.
_SAME_ELEMENTS = {"bitcast", "convert", "copy", "reshape", "transpose"}


@dataclasses.dataclass
class Costs:
    """Sums over a program; `loops` are (trips, nesting), trips None where they are not known."""

    bytes: float = 0
    operations: float = 0
    seconds: float = 0
    fusions: int = 0
    calls: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    loops: list = dataclasses.field(default_factory=list)
    copies: list = dataclasses.field(default_factory=list)


def costs(text, assumed_trips=1, copies_of=None, features=(64, 512)):
    """The `Costs` of a program.

    `assumed_trips` is how often a loop runs of which XLA does not know it. `copies` get the names
    of new float32 arrays of queries, keys or values: with `copies_of` elements, and an axis of one
    of the sizes in `features`, which tiles of scores lack.
    """
    parts, entry = computations(text)
    total = Costs()
    _Walk(parts, assumed_trips, (copies_of, features), total).walk(entry, 1, 0)
    return total


class _Walk:
    def __init__(self, parts, assumed_trips, copies_of, total):
        self.parts, self.total = parts, total
        self.assumed_trips, self.copies_of = assumed_trips, copies_of

    def walk(self, name, times, depth):
        part = self.parts[name]
        for one in part.values():
            if one.opcode == "while":
                self.total.loops.append((one.trips, depth))
                trips = self.assumed_trips if one.trips is None else one.trips
                self.walk(one.called("body")[0], times * trips, depth + 1)
            elif one.opcode == "conditional":
                branch = self._branch(one)
                self.walk(branch, times, depth)
            elif one.opcode in ("call", "async-start"):
                self.walk(one.called("to_apply", "calls")[0], times, depth)
            elif one.opcode not in _FREE and not one.opcode.endswith(("-done", "-update-done")):
                self._add(part, one, times)

    def _branch(self, one):
        """The branch with cuDNN's kernel that moves the fewest bytes, or, if none has it, the one
        that moves the most.
        """
        roles = "true_computation", "false_computation", "branch_computations"

        def rank(name):
            alone = Costs()
            _Walk(self.parts, self.assumed_trips, self.copies_of, alone).walk(name, 1, 0)
            fused = any("cudnn" in call for call in alone.calls)
            return fused, -alone.bytes if fused else alone.bytes

        return max(one.called(*roles), key=rank)

    def _add(self, part, one, times):
        moved = _moved(self.parts, part, one)
        products = list(_products(self.parts, part, one))
        operations = sum(count for _, count in products)
        multiplying = sum(count / OPERATIONS.get(dtype, 67e12) for dtype, count in products)
        self.total.bytes += moved * times
        self.total.operations += operations * times
        self.total.seconds += max(moved / MEMORY, multiplying) * times
        if one.opcode == "fusion":
            self.total.fusions += 1
            if "__triton" in one.rest:
                self.total.calls["Triton"] += 1
        elif one.target:
            self.total.calls[one.target] += 1
        self.total.copies += [
            one.name
            for array, updated in zip(one.arrays, _updates(self.parts, part, one), strict=True)
            if updated is None and self._is_copy(array)
        ]

    def _is_copy(self, array):
        elements, features = self.copies_of
        alike = (array.dtype, array.elements) == ("f32", elements)
        return alike and not set(features).isdisjoint(array.sizes)


# Bytes


def _moved(parts, part, one):
    if one.opcode == "dynamic-update-slice":
        return 2 * part[one.operands[1]].bytes
    if one.opcode in ("slice", "dynamic-slice", "gather"):
        return 2 * one.bytes
    if one.opcode == "copy-start":
        return 2 * part[one.operands[0]].bytes
    written = sum(
        array.bytes if updated is None else updated
        for array, updated in zip(one.arrays, _updates(parts, part, one), strict=True)
    )
    return written + _read(parts, part, one)


def _read(parts, part, one):
    if one.opcode != "fusion":
        return sum(part[name].bytes for name in set(one.operands))
    inner = parts[one.called("calls")[0]]
    given = {}
    for parameter, name in zip(inner.parameters, one.operands, strict=True):
        # One operand may be given twice, and is read once if it is whole.
        whole = sum(array.bytes for array in parameter.arrays)
        given.setdefault(name, []).append(min(whole, _used(inner, parameter, whole)))
    return sum(max(found) for found in given.values())


def _used(inner, parameter, whole):
    """The bytes of a parameter that a fusion reads."""
    size = SIZES.get(parameter.arrays[0].dtype, 1) if parameter.arrays else 1
    total, pending, seen = 0, [parameter.name], set()
    while pending:
        name = pending.pop()
        for user in inner.users(name):
            first = user.operands[0] == name
            if user.opcode in ("slice", "dynamic-slice", "gather") and first:
                total += user.arrays[0].elements * size
            elif user.opcode in ("dynamic-update-slice", "scatter") and first:
                pass  # In place.
            elif user.opcode in _SAME_ELEMENTS:
                if user.is_root:
                    return whole
                if user.name not in seen:
                    seen.add(user.name)
                    pending.append(user.name)
            else:
                return whole
    return total


def _updates(parts, part, one):
    """For each result, the bytes of an update in place, or None for a new array."""
    if one.opcode == "dynamic-update-slice":
        return [part[one.operands[1]].bytes]
    if one.opcode != "fusion":
        return [None] * len(one.arrays)
    inner = parts[one.called("calls")[0]]
    root = inner.root
    results = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
    found = [_update(inner, result) for result in results]
    return found if len(found) == len(one.arrays) else [None] * len(one.arrays)


def _update(inner, result):
    array = result.arrays[0]
    while result.opcode in _SAME_ELEMENTS:
        result = inner[result.operands[0]]
    if result.opcode not in ("dynamic-update-slice", "scatter"):
        return None
    update = inner[result.operands[1 if result.opcode == "dynamic-update-slice" else 2]]
    return update.arrays[0].elements * SIZES.get(array.dtype, 1)


# Products


def _products(parts, part, one):
    """(dtype, operations) of the products in an instruction."""
    if one.opcode == "fusion":
        inner = parts[one.called("calls")[0]]
        for nested in inner.values():
            yield from _products(parts, inner, nested)
    elif one.opcode == "dot":
        yield _product(part, one, one.numbers("lhs_contracting_dims"))
    elif one.target and "cublas" in one.target:
        yield _product(part, one, one.numbers("lhs_contracting_dimensions"))
    elif one.target and "fmha" in one.target:
        yield one.arrays[0].dtype, _fused_attention(part, one)


def _product(part, one, contracted):
    left = part[one.operands[0]].arrays[0]
    return left.dtype, 2 * one.arrays[0].elements * math.prod(left.sizes[n] for n in contracted)


def _fused_attention(part, one):
    """The operations of cuDNN's kernel: two products of the pairs that the pattern leaves, and
    five in the gradient.
    """
    config = one.rest.split("backend_config=", 1)[1]
    config = json.JSONDecoder().raw_decode(config)[0]["cudnn_fmha_backend_config"]
    sizes = config["intermediate_tensor_shape"]["dimensions"]
    batch, heads, queries, keys = map(int, sizes)
    pairs = queries * keys
    window = int(config.get("sliding_window_length", 0))
    if window:
        pairs = queries * min(window, keys)
    elif "CAUSAL" in config["mask_type"]:
        pairs = pairs // 2
    features = part[one.operands[0]].arrays[0].sizes[-1]
    products = 5 if re.search("Backward", one.target) else 2
    return 2 * products * batch * heads * pairs * features
