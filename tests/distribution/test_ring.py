"""Sequences split over devices: `ring_attend` is `attend` of the whole sequence."""

import functools
import re

import jax
import keras
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from keras_attention import ops, patterns, positions
from keras_attention.positions import RelativeBias, Rotary, Shaw
from tests.distribution.programs import collectives

DEVICES = 8
BATCH, LENGTH, HEADS, GROUPS, SIZE = 2, 256, 4, 2, 8
MESH = Mesh(np.array(jax.devices()), ("sequence",))
SPLIT = P(None, "sequence")
# Options, whether there are a mask and segments, and whether the order is zig-zag.
CASES = {
    "plain": ({}, False, False),
    "causal": ({"pattern": "causal"}, True, True),
    "window": ({"pattern": patterns.SlidingWindow(40, 8)}, False, False),
    "prefix": ({"pattern": patterns.Causal() | patterns.Prefix(5)}, False, False),
    "capped, with a sink": (
        {"logit_soft_cap": 5.0, "sink": np.linspace(-1, 1, HEADS)},
        True,
        False,
    ),
}


def problem(length=LENGTH, batch=BATCH, heads=HEADS, groups=GROUPS, size=SIZE):
    """Query, key and value, a mask of keys, and segments."""
    rng = np.random.default_rng(0)
    arrays = [
        jnp.asarray(rng.normal(size=(batch, length, n, size)), "float32")
        for n in (heads, groups, groups)
    ]
    mask = jnp.asarray(rng.random((batch, length)) < 0.8)
    # A row without keys.
    mask = mask.at[0].set(False)
    segments = jnp.asarray(np.sort(rng.integers(0, 3, (batch, length)), axis=1))
    return arrays, mask, segments


def around(arrays, mask, segments, zigzag, **options):
    """Output and lse of the whole sequence, by a ring."""

    def attend(query, key, value, mask, segments):
        pair = None if segments is None else (segments, segments)
        given = {"mask": mask, "segment_ids": pair, "zigzag": zigzag, **options}
        return ops.ring_attend(query, key, value, "sequence", return_lse=True, **given)

    given = [*arrays, mask, segments]
    if zigzag:
        # An index, since XLA needs long to compile the slices of `ring_order` on several devices.
        chunks = np.arange(arrays[0].shape[1]).reshape(2 * DEVICES, -1)
        order = np.concatenate([chunks[n] for r in range(DEVICES) for n in (r, 15 - r)])
        given = [None if x is None else x[:, order] for x in given]
    specs = tuple(None if x is None else SPLIT for x in given)
    ring = jax.shard_map(
        attend, mesh=MESH, in_specs=specs, out_specs=(SPLIT, P(None, None, "sequence"))
    )
    output, lse = ring(*given)
    if not zigzag:
        return output, lse
    back = np.argsort(order)
    return output[:, back], lse[:, :, back]


def whole(arrays, mask, segments, **options):
    """Output and lse by `attend`."""
    mask = None if mask is None else mask[:, None, None]
    pair = None if segments is None else (segments, segments)
    return ops.attend(*arrays, mask, segment_ids=pair, return_lse=True, **options)


def gradients(function):
    """Output, lse and gradients of both."""

    def loss(arrays):
        output, lse = function(arrays)
        seen = jnp.where(lse > -1e30, lse, 0.0)
        return jnp.sum(output**2) + jnp.sum(jnp.sin(seen)), (output, lse)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def assert_same(found, expected, atol):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_it_is_attend(name):
    options, masked, zigzag = CASES[name]
    arrays, mask, segments = problem()
    if not masked:
        mask = segments = None
    found = gradients(lambda x: around(x, mask, segments, zigzag, **options))(arrays)
    expected = gradients(lambda x: whole(x, mask, segments, **options))(arrays)
    assert_same(found, expected, 2e-5)


def test_half_precision_travels_as_such_and_is_summed_in_float32():
    arrays, *_ = problem()
    narrow = [x.astype("bfloat16") for x in arrays]
    function = gradients(lambda x: around(x, None, None, False, pattern="causal"))
    ((_, (output, lse)), found) = function(narrow)
    exact = gradients(lambda x: whole(x, None, None, pattern="causal"))(
        [x.astype("float32") for x in narrow]
    )
    assert output.dtype == "bfloat16" and lse.dtype == "float32"
    np.testing.assert_allclose(output.astype("float32"), exact[0][1][0], atol=0.02)
    for one, other in zip(found, exact[1], strict=True):
        assert one.dtype == "bfloat16"
        np.testing.assert_allclose(one.astype("float32"), other, rtol=0.02, atol=0.05)
    # XLA on CPUs widens what travels, so this is the program before it. Gradients are wide.
    text = function.lower(narrow).as_text()
    sent = re.findall(r"collective_permute.*-> tensor<(?:\d+x)*(\w+)>", text)
    assert sorted(sent) == ["bf16"] * 4 + ["f32"] * 2


class Late(positions.Position):
    """A bias of both positions, not of their distance."""

    def bias(self, i, j, num_heads):
        return jnp.sin(i + 2.0 * j)


@pytest.mark.parametrize(
    ("make", "zigzag"),
    [
        (Rotary, True),
        (positions.ALiBi, False),
        (lambda: RelativeBias(8, 50), True),
        (lambda: Shaw(20), False),
        (Late, False),
    ],
)
def test_positions_are_those_of_the_whole_sequence(make, zigzag):
    arrays, mask, _ = problem()
    position = make()
    position.build_values(arrays[2].shape)
    position.build(arrays[0].shape, arrays[1].shape)
    rng = np.random.default_rng(1)
    weights = [jnp.asarray(rng.normal(size=w.shape), "float32") for w in position.weights]

    def with_weights(attend):
        def function(given):
            weights, arrays = given
            with keras.StatelessScope(zip(position.weights, weights, strict=True)):
                return attend(arrays, mask, None, pattern="causal", position=position)

        return gradients(function)((weights, arrays))

    found = with_weights(functools.partial(around, zigzag=zigzag))
    assert_same(found, with_weights(whole), 5e-5)


def test_dropout_drops_each_weight_alone_and_the_gradient_the_same():
    arrays, *_ = problem(size=LENGTH, heads=2, groups=2)
    query, key, _ = arrays
    # Values that are the identity show the weights.
    value = jnp.broadcast_to(jnp.eye(LENGTH)[None, :, None], (BATCH, LENGTH, 2, LENGTH))

    @jax.jit
    def weights(query, seed_value):
        return around((query, key, seed_value), None, None, True, dropout=0.25, seed=3)[0]

    found, pull = jax.vjp(lambda v: weights(query, v), value)
    kept = np.asarray(found) > 0
    assert abs(kept.mean() - 0.75) < 0.01
    # No two blocks of queries or keys are alike.
    blocks = kept[0, :, 0].reshape(16, 16, 16, 16).swapaxes(1, 2).reshape(256, 256)
    assert len(np.unique(blocks, axis=0)) == 256
    # The output is linear in the values, so the gradient shows the weights again.
    (of_value,) = pull(jnp.ones_like(found))
    np.testing.assert_allclose(
        np.asarray(of_value)[0, :, 0, 0], np.asarray(found)[0, :, 0].sum(0), rtol=1e-4, atol=1e-5
    )


def test_only_neighbors_talk_and_memory_grows_with_a_share():
    def program(length):
        sharding = NamedSharding(MESH, SPLIT)
        arrays = [jax.ShapeDtypeStruct((1, length, 4, 16), "float32", sharding=sharding)] * 3

        def loss(arrays):
            return jnp.sum(around(arrays, None, None, False, pattern="causal")[0] ** 2)

        return jax.grad(loss), arrays

    function, arrays = program(2**13)
    found = collectives(function, arrays)
    assert set(found) == {"collective-permute"}, found
    # In each step, keys and values forward, and both with their gradients backward.
    sent = [kind for types in found["collective-permute"] for kind in types.split("f32")[1:]]
    assert len(sent) == 6 and set(sent) == {"[1,1024,4,16]"}, found

    def memory(length):
        function, arrays = program(length)
        analysis = jax.jit(function).lower(arrays).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    share = 2**16 // DEVICES * 4 * 16 * 4  # bytes of one array of a device
    # At T = 65,536 the scores of a head would be 17 GB, and a device's part of them 2 GB.
    assert memory(2**16) < 60 * share
    assert memory(2**16) < 2.2 * memory(2**15)
