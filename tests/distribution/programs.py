"""Steps of training on JAX, and what their compiled programs say to other devices."""

import collections
import re

import jax
import numpy as np
from jax import numpy as jnp

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


def normal(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def step(function):
    """What a function of a nest of arrays gives, and the gradients of the nest."""

    def loss(given):
        output = function(given)
        # An lse of no keys is the lowest number.
        seen = [jnp.where(x > -1e30, x, 0.0) for x in jax.tree.leaves(output)]
        return sum(jnp.sum(jnp.sin(x)) for x in seen), output

    def run(given):
        (_, output), gradients = jax.value_and_grad(loss, has_aux=True)(given)
        return output, gradients

    return jax.jit(run)


def assert_same(found, expected, atol=2e-5):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=atol)
