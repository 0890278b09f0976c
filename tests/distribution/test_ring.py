"""In `jax.shard_map`: `ring_attend` is `attend` of the whole sequence, and `attend` of its rows."""

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
from tests.distribution.programs import assert_same, collectives, normal, step

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
    "capped, a sink": ({"logit_soft_cap": 5.0, "sink": np.linspace(-1, 1, HEADS)}, True, False),
}


def problem(batch=BATCH, heads=HEADS, groups=GROUPS, size=SIZE):
    """Query, key and value, a mask of keys, and segments."""
    rng = np.random.default_rng(1)
    mask = rng.random((batch, LENGTH)) < 0.8
    # A row without keys.
    mask[0] = False
    segments = np.sort(rng.integers(0, 3, (batch, LENGTH)), axis=1)
    return normal(*((batch, LENGTH, n, size) for n in (heads, groups, groups))), mask, segments


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


@pytest.mark.parametrize("name", CASES)
def test_it_is_attend(name):
    options, masked, zigzag = CASES[name]
    arrays, mask, segments = problem()
    if not masked:
        mask = segments = None
    found = step(lambda x: around(x, mask, segments, zigzag, **options))(arrays)
    assert_same(found, step(lambda x: whole(x, mask, segments, **options))(arrays))


def test_half_precision_travels_as_such_and_is_summed_in_float32():
    arrays, *_ = problem()
    narrow = [x.astype("bfloat16") for x in arrays]
    function = step(lambda x: around(x, None, None, False, pattern="causal"))
    (output, lse), found = function(narrow)
    exact, expected = step(lambda x: whole(x, None, None, pattern="causal"))(
        [x.astype("float32") for x in narrow]
    )
    assert output.dtype == "bfloat16" and lse.dtype == "float32"
    np.testing.assert_allclose(output.astype("float32"), exact[0], atol=0.02)
    for one, other in zip(found, expected, strict=True):
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
    weights = normal(*(w.shape for w in position.weights))

    def with_weights(attend):
        def function(given):
            weights, arrays = given
            with keras.StatelessScope(zip(position.weights, weights, strict=True)):
                return attend(arrays, mask, None, pattern="causal", position=position)

        return step(function)((weights, arrays))

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


def test_only_neighbors_talk():
    shape = jax.ShapeDtypeStruct((1, 2**13, 4, 16), "float32", sharding=NamedSharding(MESH, SPLIT))
    function = step(lambda x: around(x, None, None, False, pattern="causal")[0])
    found = collectives(function, [shape] * 3)
    # All sum the loss.
    assert set(found) <= {"collective-permute", "all-reduce"}, found
    # In each step, keys and values forward, and both with their gradients backward.
    sent = [kind for types in found["collective-permute"] for kind in types.split("f32")[1:]]
    assert len(sent) == 6 and set(sent) == {"[1,1024,4,16]"}, found


OF_ROWS = {
    "plain": {},
    "causal": {"pattern": "causal"},
    "window": {"pattern": patterns.SlidingWindow(32, 0)},
    "capped, with a sink": {"logit_soft_cap": 5.0, "sink": np.zeros(HEADS, "float32")},
    "sparsemax": {"normalization": "sparsemax"},
    "one query": {},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", OF_ROWS)
def test_each_device_attends_over_its_rows(name, masked):
    (query, key, value), mask, _ = problem(batch=DEVICES)
    arrays = [query[:, :1] if name == "one query" else query, key, value]
    mask = mask[:, None] if masked else None

    def attend(query, key, value, mask):
        return ops.attend(query, key, value, mask, **OF_ROWS[name])

    rows = P("sequence")
    shared = jax.shard_map(attend, mesh=MESH, in_specs=rows, out_specs=rows)
    found, expected = (step(lambda x, f=f: f(*x, mask))(arrays) for f in (shared, attend))
    assert_same(found, expected)
