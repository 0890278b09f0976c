"""Embeddings of clipped distances in kernels: values, gradients and memory."""

import keras
import numpy as np
import pytest

from keras_attention.kernels import relative
from keras_attention.spec import Positions
from tests import problems
from tests.positions.small_shaw import (
    ON_JAX,
    WIDEST,
    B,
    H,
    T,
    V,
    close,
    heads,
    integers,
    random,
    run,
    tables,
)


@pytest.mark.parametrize("queries, keys, k, offset", [(4, 6, 2, 0), (6, 4, 9, 3), (1, 7, 3, 6)])
def test_shifting_diagonals_is_looking_up_pairs(queries, keys, k, offset):
    query = heads(queries, keys)[0].transpose(0, 2, 1, 3)
    weights = random(B, H, queries, keys, seed=6)
    of_keys, of_values = tables(k, per_head=True)

    def both(query, weights, of_keys, of_values):
        at = offset + keras.ops.arange(queries, dtype="int32")
        ways = Positions.of(queries, keys, offset=offset), Positions.of(queries, keys, at)
        assert [way.consecutive for way in ways] == [True, False]
        return [
            answer
            for way in ways
            for answer in (
                relative.scores(query, of_keys, keys, way),
                relative.values(weights, of_values, way),
            )
        ]

    scores, values, looked_up, summed = run(both, query, weights, of_keys, of_values)
    assert scores.shape == (B, H, queries, keys) and values.shape == (B, H, queries, V)
    close(scores, looked_up)
    close(values, summed)


def test_dropout_drops_a_value_and_its_distance_together():
    # Values that are unit vectors show each weight by key; those of the table, by distance.
    query, key, _ = heads(T, T)
    by_key = np.broadcast_to(np.eye(T)[None, :, None], (B, T, H, T)).astype(WIDEST)
    by_distance = np.eye(2 * T - 1)[None].astype(WIDEST)
    of_keys, nothing = tables(T - 1)[0], np.zeros((1, 2 * T - 1, T), WIDEST)

    def both(query, key, of_keys, *values):
        return [
            problems.attend(
                query, key, value, relative_keys=of_keys, relative_values=of_values,
                dropout=0.5, seed=3,
            ).output
            for value, of_values in (values[:2], values[2:])
        ]  # fmt: skip

    zeros = np.zeros((B, T, H, 2 * T - 1), WIDEST)
    first, second = run(both, query, key, of_keys, by_key, nothing, zeros, by_distance)
    assert (first == 0).any()
    for t in range(T):
        close(second[:, t, :, T - 1 - t : 2 * T - 1 - t], first[:, t])


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
