"""`keras.distribution` on JAX: training, memory, files and generation as on one device."""

import contextlib

import jax
import keras
import numpy as np
import pytest

from keras_attention import distribution, generation
from tests.distribution.models import (
    BLOCKS,
    assert_trained_alike,
    decoder,
    texts,
    trained,
)
from tests.distribution.programs import collectives


@contextlib.contextmanager
def distributed(by):
    keras.distribution.set_distribution(by)
    try:
        yield
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


def data_parallel(model):
    return keras.distribution.DataParallel(devices=keras.distribution.list_devices())


WAYS = {
    "data": data_parallel,
    "model": lambda model: model_parallel(model, 1, 8),
    "both": model_parallel,
    "sequence": sequence_parallel,
    "heads": lambda model: sequence_parallel(model, method="heads"),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_one_device(way):
    # Each pair of parts of a ring has dropout of its own.
    dropout = 0.0 if way == "sequence" else 0.1
    heads = 2 if way in ("both", "sequence") else 8
    alone = decoder(dropout=dropout, gated=True, num_key_value_heads=heads)
    start = alone.get_weights()
    with distributed(WAYS[way](alone)):
        together = keras.models.clone_model(alone)
        together.set_weights(start)
        found = trained(together)
    assert_trained_alike(found, trained(alone))


def test_a_batch_that_devices_do_not_divide_is_an_error():
    with distributed(data_parallel(None)), pytest.raises(ValueError, match="evenly divide"):
        trained(decoder(), steps=1, batch_size=12)


def test_mixed_precision_and_accumulated_gradients():
    alone = decoder(dropout=0.0, dtype="mixed_bfloat16")

    def run(model):
        x, y = texts()
        optimizer = keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model.fit(x, y, batch_size=8, epochs=6, shuffle=False, verbose=0).history["loss"]

    start = alone.get_weights()
    with distributed(model_parallel(alone)):
        together = keras.models.clone_model(alone)
        together.set_weights(start)
        found = run(together)
    np.testing.assert_allclose(found, run(alone), rtol=2e-2)
    assert found[-1] < 0.8 * found[0]


def test_a_block_needs_two_sums_and_devices_share_weights_and_optimizer():
    alone = decoder(dropout=0.0)
    with distributed(model_parallel(alone, 1, 8)):
        model = keras.models.clone_model(alone)
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


def test_a_file_written_under_one_layout_loads_under_others_and_goes_on(tmp_path):
    # Without dropout: files have no state of random numbers.
    alone, path = decoder(dropout=0.0), tmp_path / "model.keras"
    with distributed(model_parallel(alone)):
        many = keras.models.clone_model(alone)
        trained(many, steps=2)
        many.save(path)
        on_eight = trained_on(many)
    for by in (None, data_parallel(alone), model_parallel(alone, 4, 2)):
        with distributed(by):
            loaded = keras.models.load_model(path)
            # The optimizer's state comes along.
            assert_trained_alike(trained_on(loaded), on_eight)


def trained_on(model, steps=3):
    """More steps of a compiled model."""
    x, y = texts()
    history = model.fit(x, y, batch_size=len(x), epochs=steps, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


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
    with distributed(model_parallel(alone)):
        together = keras.models.clone_model(alone)
        together.set_weights(alone.get_weights())
        search = write(together)
        by_rows = keras.distribution.TensorLayout(
            ["batch"], keras.distribution.distribution().device_mesh
        )
        for given in (tokens, keras.distribution.distribute_tensor(tokens, by_rows)):
            found = search(given)
            np.testing.assert_array_equal(found.tokens, expected.tokens)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
