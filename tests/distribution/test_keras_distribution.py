"""`keras.distribution` on JAX: training, memory, files and generation as on one device."""

import contextlib

import jax
import keras
import numpy as np
import pytest

from keras_attention import distribution, generation
from tests.distribution.models import BLOCKS, assert_trained_alike, decoder, texts, trained
from tests.distribution.programs import collectives


@contextlib.contextmanager
def distributed(by, alone=None):
    """Under a distribution, with a copy of a model."""
    keras.distribution.set_distribution(by)
    try:
        together = alone and keras.models.clone_model(alone)
        if alone:
            together.set_weights(alone.get_weights())
        yield together
    finally:
        keras.distribution.set_distribution(None)


def model_parallel(model, batch=2, devices=4):
    mesh = keras.distribution.DeviceMesh((batch, devices), ["batch", "model"])
    return keras.distribution.ModelParallel(
        layout_map=distribution.layout_map(mesh, model), batch_dim_name="batch"
    )


def sequence_parallel(model, batch=2, devices=4, **options):
    mesh = keras.distribution.DeviceMesh((batch, devices), ["batch", "sequence"])
    return distribution.SequenceParallel(layout_map=keras.distribution.LayoutMap(mesh), **options)


WAYS = {
    "data": lambda _: keras.distribution.DataParallel(devices=keras.distribution.list_devices()),
    "model": lambda model: model_parallel(model, 1, 8),
    "both": model_parallel,
    "heads": lambda model: sequence_parallel(model, method="heads"),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_one_device(way):
    alone = decoder(gated=True, num_key_value_heads=2 if way == "both" else 8)
    with distributed(WAYS[way](alone), alone) as together:
        found = trained(together)
    assert_trained_alike(found, trained(alone))


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_and_accumulated_gradients(dtype):
    alone = decoder(dropout=0.0, dtype=dtype)

    def run(model):
        x, y = texts()
        optimizer = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2)
        if dtype == "mixed_float16":
            # The first two steps overflow and are skipped: the scale is halved.
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**26)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        history = model.fit(x, y, batch_size=8, epochs=6, shuffle=False, verbose=0)
        scale = float(getattr(optimizer, "dynamic_scale", 1.0))
        return history.history["loss"], scale

    with distributed(model_parallel(alone), alone) as together:
        found, scale = run(together)
    expected, expected_scale = run(alone)
    np.testing.assert_allclose(found, expected, rtol=2e-2)
    assert found[-1] < (0.8 if dtype == "mixed_bfloat16" else 0.95) * found[0]
    assert scale == expected_scale
    assert dtype == "mixed_bfloat16" or scale < 2.0**26


def test_a_block_needs_two_sums_and_devices_share_weights_and_optimizer():
    alone = decoder(dropout=0.0)
    with distributed(model_parallel(alone, 1, 8), alone) as model:
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)

    def forward(weights, state, x):
        return model.stateless_call(weights, state, x)[0]

    def loss(weights, state, x):
        return keras.ops.mean(keras.ops.square(forward(weights, state, x)))

    arrays = (
        [v.value for v in model.trainable_variables],
        [v.value for v in model.non_trainable_variables],
        texts()[0],
    )
    found = collectives(forward, *arrays)
    assert set(found) == {"all-reduce"}, found
    sums = [types for types in found["all-reduce"] if "pred" not in types]
    # One more is of the embeddings, split by tokens. A boolean for each query of each block says
    # whether any head has a key.
    assert len(sums) == 2 * BLOCKS + 1, found
    assert len(found["all-reduce"]) <= len(sums) + BLOCKS, found
    # Every weight matrix of the blocks stays where it is, in the gradient too.
    assert set(collectives(jax.grad(loss), *arrays)) == {"all-reduce"}

    def held(variables):
        """The largest part of the bytes that one device holds."""
        by_device = dict.fromkeys(jax.devices(), 0)
        for variable in variables:
            for shard in variable.value.addressable_shards:
                by_device[shard.device] += shard.data.nbytes
        return max(by_device.values()) / sum(v.value.nbytes for v in variables)

    matrices = [v for v in model.weights if len(v.shape) > 1]
    assert held(matrices) == 1 / 8
    assert held([v for v in model.optimizer.variables if len(v.shape) > 1]) == 1 / 8
    assert held(model.weights) < 0.15


def test_a_run_goes_on_under_any_other_layout(tmp_path):
    # Without dropout: files have no state of random numbers.
    alone, path = decoder(dropout=0.0), tmp_path / "model.keras"
    with distributed(model_parallel(alone), alone) as many:
        first, _ = trained(many, steps=5)
        many.save(path)
    expected = trained(alone, steps=10)
    x, y = texts()
    for by in (None, sequence_parallel(alone)):
        with distributed(by):
            # With the optimizer's state.
            model = keras.models.load_model(path)
            more = model.fit(x, y, batch_size=len(x), epochs=5, shuffle=False, verbose=0)
            found = first + more.history["loss"], model.get_weights()
        assert_trained_alike(found, expected)


def test_generation_gives_the_tokens_of_one_device():
    alone = decoder(dropout=0.0)
    trained(alone, steps=5)
    tokens = np.arange(1, 9, dtype="int32")

    def write(model):
        embedding, positions = model.get_layer("embedding"), model.get_layer("positions")
        blocks = [model.get_layer(f"block_{n}") for n in range(BLOCKS)]

        def step(tokens, caches):
            x = positions(embedding(tokens[:, None]), start_index=caches[0]["index"])
            after = []
            for block, cache in zip(blocks, caches, strict=True):
                x, cache = block(x, cache=cache)
                after.append(cache)
            return embedding(x, reverse=True)[:, 0], after

        def search(tokens):
            caches = [block.make_cache(len(tokens), 10) for block in blocks]
            return generation.greedy(step, tokens, caches, max_tokens=10)

        return generation.compiled(search, model)

    expected = write(alone)(tokens)
    with distributed(model_parallel(alone), alone) as together:
        search = write(together)
        by_rows = keras.distribution.TensorLayout(
            ["batch"], keras.distribution.distribution().device_mesh
        )
        for given in (tokens, keras.distribution.distribute_tensor(tokens, by_rows)):
            found = search(given)
            np.testing.assert_array_equal(found.tokens, expected.tokens)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
