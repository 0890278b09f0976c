"""Embeddings of clipped distances in kernels: values, gradients and memory."""

import keras
import numpy as np
import pytest

from tests import problems
from tests.positions.small_shaw import ON_JAX, integers, random

# Memory


@pytest.mark.skipif(not ON_JAX, reason="Only JAX lists the arrays of a computation.")
@pytest.mark.parametrize("given", [{}, {"query_positions": np.arange(64)[::-1].copy()}])
def test_no_array_has_features_for_every_pair(given):
    import jax

    length, features = 64, 40
    x = random(1, length, 2, features)
    of_keys, of_values = random(1, 9, features, seed=1), random(1, 9, features, seed=2)

    def total(x, of_keys, of_values):
        found = problems.attend(
            x,
            x,
            x,
            relative_keys=of_keys,
            relative_values=of_values,
            **{n: integers(x) for n, x in given.items()},
        )
        return keras.ops.sum(keras.ops.square(found.output))

    largest = 0

    def walk(jaxpr):
        nonlocal largest
        for equation in jaxpr.eqns:
            largest = max([largest, *(int(np.prod(v.aval.shape)) for v in equation.outvars)])
            for inner in jax.extend.core.jaxprs_in_params(equation.params):
                walk(inner)

    walk(jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(x, of_keys, of_values).jaxpr)
    assert 2 * length * length <= largest < length * length * features / 4
