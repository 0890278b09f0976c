"""What a compiled JAX program says to other devices."""

import collections
import re

import jax

# The types of a collective's result and its name, in the text of a compiled program.
COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def collectives(function, *arrays):
    """How many of each kind of collective `function` makes, and the types of what they return."""
    text = jax.jit(function).lower(*arrays).compile().as_text()
    found = collections.defaultdict(list)
    for types, name in COLLECTIVE.findall(text):
        found[name].append(re.sub(r"\{[^}]*\}|/\*.*?\*/", "", types))
    return dict(found)
