"""The formulae of `benchmarks.scaling` against programs compiled for eight devices."""

import re

import jax
import keras
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import scaling
from keras_attention import TransformerBlock, distribution, ops
from tests.distribution.programs import collectives

DEVICES = 8
SIZE = scaling.Size(layers=2, dim=64, heads=8, vocabulary=0, batch=8, length=64)
BYTES = {"f32": 4, "bf16": 2, "pred": 1, "s32": 4}
MESH = Mesh(np.array(jax.devices()), ("devices",))


def payload(types):
    """The bytes of the arrays in the types of a collective's result."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", types)
    return sum(BYTES[kind] * int(np.prod([int(n) for n in s.split(",") if n])) for kind, s in found)


def model():
    x = y = keras.Input((SIZE.length, SIZE.dim))
    for n in range(SIZE.layers):
        y = TransformerBlock(4 * SIZE.dim, SIZE.heads, causal=True, name=f"block_{n}")(y)
    return keras.Model(x, y)


def gradients(model, x, layouts=None):
    """The gradient of a model's weights as a function of arrays placed on devices, and these."""

    def place(variable):
        # A map of layouts gives None for others.
        layout = layouts and layouts[variable.path]
        axes = ["devices" if axis else None for axis in layout.axes] if layout else []
        return jax.device_put(variable.value, NamedSharding(MESH, P(*axes)))

    def loss(weights, state, x):
        return jnp.mean(model.stateless_call(weights, state, x)[0] ** 2)

    state = [v.value for v in model.non_trainable_variables]
    return jax.grad(loss), ([place(v) for v in model.trainable_variables], state, x)


def inputs(axis):
    x = np.zeros((SIZE.batch, SIZE.length, SIZE.dim), "float32")
    return jax.device_put(x, NamedSharding(MESH, P(*axis)))


def test_data_parallel():
    function, arrays = gradients(model(), inputs(["devices"]))
    sent = sum(payload(types) for types in collectives(function, *arrays)["all-reduce"])
    expected = scaling.data_parallel(SIZE, DEVICES) / 2 * DEVICES / (DEVICES - 1)
    # Biases and normalizations are not in the formula.
    assert expected <= sent < 1.05 * expected


def test_tensor_parallel():
    made = model()
    mesh = keras.distribution.DeviceMesh((DEVICES,), ["model"])
    layouts = distribution.layout_map(mesh, made)
    function, arrays = gradients(made, inputs([]), layouts)
    sent = sum(payload(types) for types in collectives(function, *arrays)["all-reduce"])

    def expected(sums):
        one = scaling.tensor_parallel(SIZE, DEVICES, narrow=4, sums=sums)
        return one / 2 * DEVICES / (DEVICES - 1)

    # XLA on CPUs sums the gradients of query, key and value over devices before it adds them: six
    # sums a block, where Megatron needs four. The gradient of the whole model's input is not asked.
    assert expected(4) * 0.8 < sent < 1.05 * expected(6)


def test_sequence_parallel():
    def loss(query, key, value):
        found = ops.ring_attend(query, key, value, "devices", pattern="causal")
        return jnp.sum(found.astype("float32") ** 2)[None]

    split = P(None, "devices")
    ring = jax.shard_map(loss, mesh=MESH, in_specs=split, out_specs=P("devices"))
    shape = (SIZE.batch, SIZE.length, SIZE.heads, SIZE.dim // SIZE.heads)
    x = jax.device_put(jnp.zeros(shape, "float32"), NamedSharding(MESH, split))
    gradient = jax.grad(lambda *arrays: ring(*arrays).sum(), (0, 1, 2))
    found = collectives(gradient, x, x, x)
    assert set(found) == {"collective-permute"}
    # Each is in a loop of as many steps as devices.
    sent = DEVICES * sum(payload(types) for types in found["collective-permute"])
    ring_alone = scaling.sequence_parallel(SIZE, DEVICES, narrow=4)
    ring_alone -= scaling.data_parallel(SIZE, DEVICES)
    assert sent == ring_alone / SIZE.layers
