"""The text of a compiled program, as XLA prints it, in computations and instructions."""

import dataclasses
import math
import re

SIZES = {
    **{"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2},
    **{"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16},
}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_NAME = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Array:
    """The dtype and the sizes of an array."""

    dtype: str
    sizes: tuple

    @property
    def elements(self):
        return math.prod(self.sizes)

    @property
    def bytes(self):
        # Others, as tokens and numbers of eight bits, are small or of one byte.
        return self.elements * SIZES.get(self.dtype, 1)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line: `arrays` are its results, `operands` the names of instructions, `rest` all else."""

    name: str
    arrays: tuple
    opcode: str
    operands: tuple
    rest: str
    is_root: bool

    @property
    def bytes(self):
        return sum(array.bytes for array in self.arrays)

    def called(self, *roles):
        """The names of computations that it calls, by what it calls them: `body`, `calls`, …"""
        found = []
        for role in roles:
            match = re.search(rf"\b{role}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.rest)
            found += re.findall(r"[\w.\-]+", match[1]) if match else []
        return found

    def numbers(self, name):
        """An attribute such as `lhs_contracting_dims={1}`, or as JSON has it."""
        match = re.search(rf'\b{name}"?[=:]\s*[{{\[]([\d,\s"]*)[}}\]]', self.rest)
        return [int(number) for number in re.findall(r"\d+", match[1])] if match else []

    @property
    def target(self):
        """What a custom call calls."""
        match = re.search(r'custom_call_target="([^"]+)"', self.rest)
        return match[1] if match else None

    @property
    def trips(self):
        """How often a loop is known to run, or None."""
        match = re.search(r'known_trip_count":\{"n":"(\d+)"', self.rest)
        return int(match[1]) if match else None


class Computation(dict):
    """Its instructions by name, in order."""

    @property
    def root(self):
        return next(found for found in self.values() if found.is_root)

    @property
    def parameters(self):
        """In the order of arguments."""
        found = [one for one in self.values() if one.opcode == "parameter"]
        return sorted(found, key=lambda one: int(one.operands[0]))

    def users(self, name):
        return [one for one in self.values() if name in one.operands]


def computations(text):
    """The computations of a program by name, and the name of the one that it starts with."""
    found, entry, current = {}, None, None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header:
            current = found[header[2]] = Computation()
            entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and _NAME.match(line):
            instruction = _instruction(line)
            current[instruction.name] = instruction
    return found, entry


def _instruction(line):
    name = _NAME.match(line)
    rest = line[name.end() :]
    shapes, rest = _until(rest, " ")
    opcode, rest = rest.split("(", 1)
    operands, rest = _until("(" + rest, None)
    # Not the comments that count them, and not their shapes, which some versions print.
    found = re.findall(r"%([\w.\-]+)", operands)
    operands = [operands[1:-1]] if opcode == "parameter" else found
    arrays = [
        Array(dtype, tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _SHAPE.findall(shapes)
    ]
    return Instruction(name[2], tuple(arrays), opcode, tuple(operands), rest, bool(name[1]))


def _until(text, end):
    """A text up to `end` outside of parentheses, or up to the one that closes; and the rest."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if depth == 0 and (letter == end or (end is None and letter in ")}")):
            last = position + (end is None)
            return text[:last], text[last:].removeprefix(end or "")
    return text, ""
