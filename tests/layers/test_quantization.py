"""LoRA and int8: adapters train, and quantized models are saved."""

import inspect
import warnings

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import MultiHeadAttention
from tests.arrays import random
from tests.conformance import CASES, alone, outputs_of
from tests.layers.small_inputs import B, D, S, T, close, randomize

ops = keras.ops


# LoRA


@pytest.mark.parametrize("cls", [MultiHeadAttention, keras_attention.Attention])
def test_lora_trains_and_survives_saving(cls, tmp_path):
    x, y, target = random(8, T, D), random(8, S, D, seed=1), random(8, T, 8, seed=2)
    layer = cls(2, 4, **({"output_shape": 8} if cls is MultiHeadAttention else {}))
    inputs = [keras.Input((None, D)), keras.Input((None, D))]
    model = keras.Model(inputs, layer(*inputs))
    randomize(model)
    before = model([x, y])
    names = ["query_dense", "key_dense", "value_dense", "output_dense"]
    for name in names[: 4 if cls is MultiHeadAttention else 3]:
        getattr(layer, name).enable_lora(2)
    close(model([x, y]), before)

    frozen = [np.array(ops.convert_to_numpy(w)) for w in layer.non_trainable_variables]
    assert frozen
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
    model.fit([x, y], target, epochs=3, verbose=0)
    after = model([x, y])
    assert np.abs(ops.convert_to_numpy(after - before)).max() > 1e-2
    for weight, value in zip(layer.non_trainable_variables, frozen, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), value)

    model.save(tmp_path / "lora.keras")
    close(keras.saving.load_model(tmp_path / "lora.keras")([x, y]), after)

    model.save_weights(tmp_path / "lora.weights.h5")
    plain = keras.Model(inputs, cls.from_config(layer.get_config())(*inputs))
    plain.load_weights(tmp_path / "lora.weights.h5")
    close(plain([x, y]), after)


# int8


def ids_model(function):
    ids = keras.Input((None,), dtype="int32")
    return keras.Model(ids, function(ids)), [np.array([[1, 2, 3, 4, 0], [5, 6, 7, 0, 0]])]


def vectors_model(function, *sizes):
    inputs = [keras.Input((None, size)) for size in sizes]
    shapes = [(B, n, size) for n, size in zip((T, S, S), sizes, strict=False)]
    return (
        keras.Model(alone(inputs), function(*inputs)),
        [random(*shape, seed=i) for i, shape in enumerate(shapes)],
    )


def axes_model(x):
    return keras.Model(x, MultiHeadAttention(2, 4, attention_axes=2)(x)), [random(B, 3, T, 8)]


def tied(ids):
    embedding = keras_attention.ScaledEmbedding(11, 8, mask_zero=True)
    return embedding(keras_attention.FeedForward(16)(embedding(ids)), reverse=True)


def small_transformer(ids):
    x = keras_attention.ScaledEmbedding(11, 8, mask_zero=True)(ids)
    x = keras_attention.SinCosPositionEmbedding()(x)
    for normalize_first in (False, True):
        x = keras_attention.TransformerBlock(
            16, 2, normalize_first=normalize_first, causal=True, gated=normalize_first
        )(x)
    return keras.layers.Dense(3)(keras_attention.AttentionPooling(num_heads=2, key_dim=4)(x))


def nested(x):
    inputs = keras.Input((None, 8))
    block = keras_attention.TransformerBlock(16, 2, name="block")
    return keras.Model(inputs, block(inputs), name="inner")(x)


INT8 = {
    "MultiHeadAttention": lambda: vectors_model(
        MultiHeadAttention(2, 4, value_dim=5, output_shape=(2, 3), use_gate=True), 8, 6, 4
    ),
    "MultiHeadAttention with axes": lambda: axes_model(keras.Input((3, None, 8))),
    "Attention": lambda: vectors_model(keras_attention.Attention(2, 4), 8, 6),
    "Attention, general score": lambda: vectors_model(
        keras_attention.Attention(2, 4, score="general", use_bias=True), 8, 6
    ),
    "SelfAttention": lambda: vectors_model(keras_attention.SelfAttention(2, 4, causal=True), 8),
    "TransformerBlock": lambda: vectors_model(keras_attention.TransformerBlock(16, 2), 8),
    "FeedForward": lambda: vectors_model(keras_attention.FeedForward(16, gated=True), 8),
    "ScaledEmbedding": lambda: ids_model(keras_attention.ScaledEmbedding(11, 8, mask_zero=True)),
    "ScaledEmbedding, tied": lambda: ids_model(tied),
    "AttentionPooling": lambda: vectors_model(
        keras_attention.AttentionPooling(num_queries=2, num_heads=2, key_dim=4), 8
    ),
    "a transformer": lambda: ids_model(small_transformer),
    "a model in a model": lambda: vectors_model(nested, 8),
}


def quantize(model, mode="int8", **kwargs):
    with warnings.catch_warnings():
        # Keras says of each layer without weights, such as dropout, that it stays as it is.
        warnings.filterwarnings("ignore", message=".*does not have a `quantize")
        model.quantize(mode, **kwargs)


def quantized(layer, mode="int8"):
    return [sub.name for sub in layer._flatten_layers() if sub.quantization_mode == mode]


@pytest.mark.ci
@pytest.mark.parametrize("name", INT8)
def test_an_int8_model_is_nearly_the_model_and_loads(name, tmp_path, freeze):
    model, inputs = INT8[name]()
    randomize(model)
    model.run_eagerly = True  # A program for each model takes longer than all else here.
    before = model.predict(alone(inputs), verbose=0)
    freeze()
    quantize(model, filters="query" if name == "SelfAttention" else None)
    assert quantized(model)
    after = model.predict(alone(inputs), verbose=0)
    # By other weights.
    assert 0 < np.abs(after - before).max() < 0.1 * np.abs(before).max()
    model.save(tmp_path / "model.keras")
    freeze()
    again = keras.saving.load_model(tmp_path / "model.keras")
    again.run_eagerly = True
    close(again.predict(alone(inputs), verbose=0), after)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_of_any_layer_is_quantized(case, freeze):
    """Keras refuses a layer that holds one which is not built."""
    model = case.model()
    freeze()
    quantize(model)
    assert outputs_of(model(alone(case.arrays())))


QUANTIZATIONS = {
    "int8, weights alone": lambda: keras.quantizers.Int8QuantizationConfig(
        activation_quantizer=None
    ),
    "int4, small blocks": lambda: keras.quantizers.Int4QuantizationConfig(block_size=8),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_how_a_model_was_quantized_is_saved(name, tmp_path):
    options = inspect.signature(keras.quantizers.Int4QuantizationConfig).parameters
    if "blocks" in name and "block_size" not in options:
        pytest.skip(f"Keras {keras.__version__} quantizes no blocks")
    model, (inputs,) = vectors_model(keras_attention.SelfAttention(2, 4, causal=True), 16)
    randomize(model)
    quantize(model, mode=None, config=QUANTIZATIONS[name]())
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert quantized(again, name[:4]) == quantized(model, name[:4]) != []
    np.testing.assert_array_equal(again.predict(inputs, verbose=0), expected)


def test_files_that_name_a_mode_alone_still_load():
    layer = MultiHeadAttention(2, 4)
    layer(random(B, T, 8))
    config = {**layer.get_build_config(), "quantized": {"query": "int8", "value": "int8"}}
    again = MultiHeadAttention(2, 4)
    again.build_from_config(config)
    assert quantized(again) == ["query", "value"]


def test_int8_embedding_gives_logits_of_its_dequantized_table():
    embedding = keras_attention.ScaledEmbedding(11, 8)
    ids = np.arange(11)[None]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding])
    randomize(model)
    table = ops.convert_to_numpy(embedding.embeddings)
    quantize(model)
    x = random(B, T, 8)
    rows = ops.convert_to_numpy(embedding(ids))[0] / np.sqrt(8)
    assert 0 < np.abs(rows - table).max() < 0.02
    close(embedding(x, reverse=True), x @ rows.T)
    close(embedding.embeddings, rows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"self_attention": False}, {"attention": "own"}, {}], ids=str)
def test_normalizations_that_a_block_does_not_use(options):
    if "attention" in options:
        options = {"attention": MultiHeadAttention(2, 4)}
    block = keras_attention.TransformerBlock(
        8, 2, cross_attention=True, normalization="adaptive_entmax", **options
    )
    x = keras.Input((T, D))
    model = keras.Model(x, block(x, x))
    assert model.count_params() > 0
    model.quantize("int8")
    assert tuple(model(random(B, T, D)).shape) == (B, T, D)
