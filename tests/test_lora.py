"""`enable_lora`: what trains, what is frozen, and what files hold."""

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import Decoder, Embeddings, Logits, ScaledEmbedding, TransformerBlock
from tests.arrays import close, randomize
from tests.contract import places

ops = keras.ops

ATTENTION = ("query_dense", "key_dense", "value_dense", "output_dense")
IDS = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]])
CLASSES = np.array([[0], [2]])


def stack():
    blocks = [TransformerBlock(12, 2, causal=True, gated=True, position="rotary")]
    model = Decoder(blocks, Embeddings(ScaledEmbedding(11, 8, mask_zero=True)), logits=Logits(11))
    model.build((None, None))
    randomize(model)
    return model


def classifier(model):
    """A model with a head, which is new."""
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, keras.layers.Dense(3, name="head")(model(ids)[:, 2]))


def values(variables):
    return {variable.path: np.array(ops.convert_to_numpy(variable)) for variable in variables}


def changed(before, variables):
    return {path for path, x in values(variables).items() if not np.array_equal(x, before[path])}


def train(model, steps, targets=CLASSES):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss)
    # A program takes longer than all else here, but on JAX one for each operation does.
    model.run_eagerly = keras.backend.backend() != "jax"
    for _ in range(steps):
        model.train_on_batch(IDS, targets)


@pytest.mark.ci
@pytest.mark.parametrize(
    "projections",
    [("query_dense", "value_dense"), (*ATTENTION, "gate_dense", "intermediate_dense")],
)
def test_adapters_and_the_head_train_and_nothing_else(projections, tmp_path):
    model = stack()
    expected = model.predict(IDS, verbose=0)
    count = model.count_params()
    keras_attention.enable_lora(model, 3, alpha=6, projections=projections)
    close(model.predict(IDS, verbose=0), expected)
    # Both the attention and the feed-forward network have an output_dense.
    adapted = len(projections) + ("output_dense" in projections)
    assert len(model.trainable_variables) == 2 * adapted
    assert all("lora_kernel" in variable.path for variable in model.trainable_variables)

    whole = classifier(model)
    before = values(whole.variables)
    # B is zero at first, and with it the gradient of A.
    train(whole, steps=2)
    trained = {variable.path for variable in whole.trainable_variables}
    assert changed(before, whole.variables) == trained
    assert {path for path in trained if "lora" not in path} == {"head/kernel", "head/bias"}
    after = whole.predict(IDS, verbose=0)

    whole.save(tmp_path / "lora.keras")
    loaded = keras.saving.load_model(tmp_path / "lora.keras", compile=False)
    close(loaded.predict(IDS, verbose=0), after)
    assert loaded.count_params() == count + 11 * 3 + 3
    before = values(loaded.variables)
    train(loaded, steps=1)
    assert len(changed(before, loaded.variables)) > len(trained)


@pytest.mark.parametrize("mode", [None, "int8", "int8, experts"])
@pytest.mark.filterwarnings("ignore:.*quantize. method", "ignore:Skipping variable loading")
def test_a_file_has_no_state_of_an_optimizer_of_adapters(mode, tmp_path):
    """The loaded model has as many trained weights as there were adapters, of other shapes."""
    x = np.random.default_rng(0).normal(size=(2, 3, 32)).astype("float32")
    symbol = keras.Input((3, 32))
    layer = keras_attention.MultiHeadAttention(4, 8, use_bias=mode is not None)
    if mode == "int8, experts":
        experts = keras_attention.MixtureOfExperts(3, 3, 8)
        layer = keras_attention.TransformerBlock(None, 4, feed_forward=experts)
    model = keras.Model(symbol, layer(symbol))
    if mode is not None:
        model.quantize("int8")
    keras_attention.enable_lora(model, 2)
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=False)
    model.train_on_batch(x, 0 * x)
    expected = ops.convert_to_numpy(model(x))
    model.save(tmp_path / "lora.keras")
    loaded = keras.saving.load_model(tmp_path / "lora.keras")
    assert len(model.trainable_variables) == 4
    assert len(loaded.trainable_variables) == 4 or mode == "int8, experts"
    found = ops.convert_to_numpy(loaded(x))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_the_multiplier_is_alpha_over_rank():
    layer = keras_attention.FeedForward(12)
    layer.build((None, None, 8))
    kernel = ops.convert_to_numpy(layer.output_dense.kernel)
    keras_attention.enable_lora(layer, 2, alpha=3.0, projections=["output_dense"])
    dense = layer.output_dense
    assert dense.lora_kernel_a.shape == (12, 2) and dense.lora_kernel_b.shape == (2, 8)
    dense.lora_kernel_b.assign(np.ones((2, 8)))
    added = 1.5 * ops.convert_to_numpy(dense.lora_kernel_a) @ np.ones((2, 8))
    close(dense.kernel, kernel + added)


def test_a_block_that_is_listed_twice_is_adapted_once():
    block = TransformerBlock(12, 2)
    model = keras_attention.Encoder([block, block], Embeddings(ScaledEmbedding(11, 8)))
    model.build((None, None))
    keras_attention.enable_lora(model, 2)
    assert len(model.trainable_variables) == 4


def test_half_precision():
    with places.policy("mixed_bfloat16"):
        model = stack()
    keras_attention.enable_lora(model, 2)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    before = values(model.variables)
    train(model, 1, IDS)
    assert {path.split("/")[-1] for path in changed(before, model.variables)} == {"lora_kernel_b"}
