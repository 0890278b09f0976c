"""`ops.attend` and layers inside `jax.shard_map`, which checks what varies over devices."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from keras_attention import ops, patterns

BATCH, LENGTH, HEADS, SIZE = 8, 512, 2, 8
CASES = {
    "plain": {},
    "causal": {"pattern": "causal"},
    "window": {"pattern": patterns.SlidingWindow(32, 0)},
    "capped, with a sink": {"logit_soft_cap": 5.0, "sink": np.zeros(HEADS, "float32")},
    "sparsemax": {"normalization": "sparsemax"},
    "one query": {"queries": 1},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_each_device_attends_over_its_sequences(name, masked):
    options = dict(CASES[name])
    queries = options.pop("queries", LENGTH)
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    rng = np.random.default_rng(0)
    query, key, value = (
        jnp.asarray(rng.normal(size=(BATCH, length, HEADS, SIZE)), "float32")
        for length in (queries, LENGTH, LENGTH)
    )
    mask = jnp.asarray(rng.random((BATCH, 1, LENGTH)) < 0.9) if masked else None

    def attend(query, key, value, mask):
        return ops.attend(query, key, value, mask, **options)

    def loss(attend):
        return lambda *arrays: jnp.mean(attend(*arrays, mask) ** 2)

    shared = jax.shard_map(attend, mesh=mesh, in_specs=P("devices"), out_specs=P("devices"))
    found, expected = (
        jax.jit(jax.value_and_grad(loss(f), (0, 1, 2)))(query, key, value) for f in (shared, attend)
    )
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
