"""`SequenceParallel`: attention whose sequences `keras.distribution` splits."""

import jax
import keras
import numpy as np
import pytest
from jax import numpy as jnp

import keras_attention as ka
from keras_attention import distribution, ops, patterns, positions
from tests.distribution.models import assert_trained_alike
from tests.distribution.programs import assert_same, collectives, normal, step

BATCH, LENGTH, HEADS, SIZE = 2, 64, 8, 8
LONG = 2**16
ARRAYS = normal(*[(BATCH, LENGTH, HEADS, SIZE)] * 3)


def by(method="ring", batch=1, devices=8):
    names = keras.distribution.list_devices()[: batch * devices]
    mesh = keras.distribution.DeviceMesh((batch, devices), ["batch", "sequence"], names)
    layouts = keras.distribution.LayoutMap(mesh)
    return distribution.SequenceParallel(layout_map=layouts, method=method)


def placed(by, *arrays):
    """Arrays as `fit` puts them on devices."""
    return [keras.distribution.distribute_tensor(x, by.get_data_layout(x.shape)) for x in arrays]


def shaw():
    position = positions.Shaw(3)
    position.build_values((None, None, HEADS, SIZE))
    position.build((None, None, HEADS, SIZE), None)
    return position


PAIRS = {"bias": normal((LENGTH, LENGTH))[0], "mask": np.tri(LENGTH, dtype=bool)}
CASES = {
    "ring, causal": ("ring", {"pattern": "causal", "position": "alibi"}, "collective-permute"),
    "heads, Shaw": ("heads", {"pattern": "causal", "position": shaw}, "all-to-all"),
    "heads, sparsemax and pairs": ("heads", {"normalization": "sparsemax", **PAIRS}, "all-to-all"),
    "ring that cannot": ("ring", PAIRS, None),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_attend_and_devices_exchange_what_they_must(name):
    method, options, exchange = CASES[name]
    options = dict(options)
    if callable(options.get("position")):
        options["position"] = options["position"]()

    def attend(arrays):
        return ops.attend(*arrays, **options)

    expected = step(attend)(ARRAYS)
    with by(method).scope():
        arrays = placed(by(method), *ARRAYS)
        function = step(attend)
        found = function(arrays)
        if exchange is not None:
            sharding = arrays[0].sharding
            assert all(x.sharding.is_equivalent_to(sharding, 4) for x in jax.tree.leaves(found))
            assert set(collectives(function, arrays)) - {"all-reduce"} == {exchange}
    assert_same(found, expected)


def test_explain_says_which():
    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ARRAYS]
    said = {}

    def explained(*arrays, **options):
        said["now"] = ops.explain(*arrays, **options)
        return arrays[0]

    with by().scope():
        jax.eval_shape(explained, *arrays)
        assert said["now"].startswith("ring: devices share the sequence")
        jax.eval_shape(lambda *x: explained(*x, mask=np.tri(LENGTH, dtype=bool)), *arrays)
        assert "not 'ring': a mask or bias is one of pairs" in said["now"]
        assert "not 'ring': the program is not one of all devices" in ops.explain(*ARRAYS)


def translator():
    """Two sequences of unequal lengths, with every kind of position, padding and segments."""
    source, target, texts = (keras.Input((n,), dtype="int32") for n in (32, LENGTH, LENGTH))
    x = ka.ScaledEmbedding(20, 16, mask_zero=True)(source)
    x = ka.LearnedPositionEmbedding(LENGTH)(x)
    x = ka.TransformerBlock(
        16, 4, pattern=patterns.SlidingWindow(7, 7), position=positions.Shaw(2)
    )(x)
    y = ka.ScaledEmbedding(20, 16, mask_zero=True)(target)
    y = ka.SinCosPositionEmbedding()(y)
    y = ka.TransformerBlock(16, 4, causal=True, position="rotary")(y, segment_ids=texts)
    y = ka.TransformerBlock(
        16, 4, causal=True, position="relative_bias", use_sink=True, cross_attention=True
    )(y, x)
    return keras.Model([source, target, texts], keras.layers.Dense(20)(y))


def test_a_model_with_every_position_trains_as_on_one_device():
    rng = np.random.default_rng(0)
    source, target = (rng.integers(1, 20, (4, n)) for n in (32, LENGTH))
    source[:, 21:] = target[1, 40:] = 0
    texts = np.sort(rng.integers(0, 3, (4, LENGTH)), axis=1)

    def trained(model):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.3, momentum=0.9), loss)
        inputs = [source, target, texts]
        fitted = model.fit(inputs, target, batch_size=4, epochs=4, shuffle=False, verbose=0)
        return fitted.history["loss"], model.get_weights()

    alone = translator()
    with by(batch=2, devices=4).scope():
        together = keras.models.clone_model(alone)
        together.set_weights(alone.get_weights())
        found = trained(together)
    assert_trained_alike(found, trained(alone))
    assert found[0][-1] < 0.9 * found[0][0]


def test_a_device_needs_the_memory_of_its_part():
    def temporary(devices):
        shared = by(devices=devices)
        block = ka.TransformerBlock(64, HEADS, causal=True, position="rotary")
        with shared.scope():
            block.build((1, LONG, 64))
            weights = [v.value for v in block.trainable_variables]
            layout = shared.get_data_layout((1, LONG, 64)).backend_layout
            x = jax.ShapeDtypeStruct((1, LONG, 64), "float32", sharding=layout)

            def loss(weights, x):
                state = [v.value for v in block.non_trainable_variables]
                return jnp.mean(block.stateless_call(weights, state, x)[0] ** 2)

            program = jax.jit(jax.grad(loss, (0, 1))).lower(weights, x).compile()
        return program.memory_analysis().temp_size_in_bytes

    # A tile of scores, which is as large on both, is in addition.
    assert temporary(8) < 0.2 * temporary(1)
