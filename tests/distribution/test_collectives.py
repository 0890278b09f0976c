"""Kernels stay sharded: no device gathers queries, keys, heads or scores of others."""

import jax
import keras
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from keras_attention import MultiHeadAttention, patterns, positions
from tests.distribution.programs import collectives

BATCH, DIM, HEADS = 8, 32, 8
WINDOW = patterns.Causal() & patterns.SlidingWindow(32, 0)
# The options of a layer, the length, and whether it has a mask.
CASES = {
    "one block": ({}, 64, True),
    "blocks": ({}, 512, True),
    "causal blocks": ({"pattern": "causal"}, 512, True),
    "windows": ({"pattern": WINDOW}, 512, True),
    "dropout": ({"dropout": 0.1, "seed": 1}, 512, False),
    "rotary": ({"position": "rotary"}, 512, True),
    "bias by distance": ({"position": positions.RelativeBias(8)}, 512, True),
    "reference": ({"normalization": "hard"}, 64, True),
}
# The axis of a variable that the devices share, by the end of its path.
BY_HEADS = {
    **{f"{role}/kernel": 1 for role in ("query", "key", "value")},
    **{f"{role}/bias": 0 for role in ("query", "key", "value")},
    "attention_output/kernel": 0,
    "relative_bias/embeddings": 1,
}


def step(name, shares):
    """A training step of a layer as a function of its arguments, and these, shared by devices."""
    options, length, masked = CASES[name]
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    layer = MultiHeadAttention(HEADS, 4, **options)
    layer.build((None, length, DIM))
    x = np.random.default_rng(0).normal(size=(BATCH, length, DIM)).astype("float32")
    mask = np.arange(length)[None] < np.arange(length - BATCH, length)[:, None]

    def place(array, axis):
        axes = [None] * len(array.shape)
        if axis is not None:
            axes[axis] = "devices"
        return jax.device_put(array, NamedSharding(mesh, P(*axes)))

    def axis_of(variable):
        ends = [axis for end, axis in BY_HEADS.items() if variable.path.endswith(end)]
        return ends[0] if ends and shares == "heads" else None

    weights = [place(v.value, axis_of(v)) for v in layer.trainable_variables]
    state = [place(v.value, None) for v in layer.non_trainable_variables]
    rows = 0 if shares == "batch" else None

    def loss(weights, state, x, mask):
        given = {"query_mask": mask} if masked else {}
        y, state = layer.stateless_call(weights, state, x, training=True, **given)
        return keras.ops.mean(keras.ops.square(y)), state

    function = jax.value_and_grad(loss, (0, 2), has_aux=True)
    return function, (weights, state, place(x, rows), place(mask, rows))


@pytest.mark.parametrize(
    ("name", "shares"),
    [(name, "batch") for name in CASES]
    + [(name, "heads") for name in ("one block", "causal blocks", "bias by distance")],
)
def test_a_training_step_gathers_nothing(name, shares):
    function, arrays = step(name, shares)
    found = collectives(function, *arrays)
    assert set(found) == {"all-reduce"}, found
    if shares == "batch":
        # Of the loss and of the gradients of weights.
        assert len(found["all-reduce"]) <= 2, found
    # The values are those of one device.
    together = jax.jit(function)(*arrays)
    alone = jax.jit(function)(*jax.tree.map(np.asarray, arrays))
    for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
