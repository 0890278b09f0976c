"""Quantized models: nearly what they were, and saved."""

import inspect
import warnings

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import MultiHeadAttention
from tests.arrays import close, numpy, random, randomize
from tests.compiled import compiled
from tests.conformance import CASES, alone, outputs_of

ops = keras.ops

B, T, D = 2, 5, 6


def on(function, x):
    """A model of a function of tensors like x, and x as a list."""
    symbol = keras.Input((None, *x.shape[2:]), dtype=str(x.dtype))
    return keras.Model(symbol, function(symbol)), [x]


def tied(ids):
    embedding = keras_attention.ScaledEmbedding(11, 8, mask_zero=True)
    return embedding(keras_attention.FeedForward(16)(embedding(ids)), reverse=True)


def nested(x):
    inputs = keras.Input((None, 8))
    block = keras_attention.TransformerBlock(16, 2, name="block")
    return keras.Model(inputs, block(inputs), name="inner")(x)


def experts(count):
    """A block whose kernels of experts, and norm that is copied, Keras does not find itself."""
    layer = keras_attention.MixtureOfExperts(count, 2, 8, gated=count == 8)
    norm = keras_attention.RMSNorm(offset=1.0)
    return keras_attention.TransformerBlock(None, 2, feed_forward=layer, norm=norm)


IDS = np.array([[1, 2, 3, 4, 0], [5, 6, 7, 0, 0]], "int32")
VECTORS = random(B, T, 8)


def axes(x):
    return MultiHeadAttention(2, 4, attention_axes=2)(keras.ops.expand_dims(x, 1))


INT8 = {
    **{str(case): lambda case=case: (case.model(), case.arrays()) for case in CASES},
    "output of axes": lambda: on(
        MultiHeadAttention(2, 4, value_dim=5, output_shape=(2, 3), use_gate=True), VECTORS
    ),
    "axes": lambda: on(axes, VECTORS),
    "tied": lambda: on(tied, IDS),
    "few of many experts": lambda: on(experts(8), VECTORS[:1, :3]),
    "all experts": lambda: on(experts(3), VECTORS),
    "a model in a model": lambda: on(nested, VECTORS),
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

    def output(model):
        return numpy(outputs_of(compiled(lambda *x: model(alone(list(x))), *inputs))[0])

    before = output(model)
    freeze()
    quantize(model, filters="query" if name == "SelfAttention" else None)
    after, names = output(model), quantized(model)
    # By other weights, where some are of a projection or a table.
    error = np.abs(after - before).max()
    assert (error > 0) == bool(names) and error < 0.1 * np.abs(before).max()
    if names:
        model.save(tmp_path / "model.keras")
        freeze()
        close(output(keras.saving.load_model(tmp_path / "model.keras")), after)


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_what_stays_in_float_is_named(mode, freeze):
    model = keras_attention.Encoder([experts(3)])
    model.build((None, None, 8))
    freeze()
    if mode == "int4":
        with pytest.warns(UserWarning, match="2 weights stay in float.*intermediate_kernel, .*out"):
            model.quantize(mode)
    else:
        model.quantize(mode)
        kernel = model.blocks[0].feed_forward._int8.output_kernel
        assert kernel.dtype == "int8" and model.blocks[0].feed_forward.output_kernel is None


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
    model, (inputs,) = on(keras_attention.SelfAttention(2, 4, causal=True), random(B, T, 16))
    randomize(model)
    quantize(model, mode=None, config=QUANTIZATIONS[name]())
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert quantized(again, name[:4]) == quantized(model, name[:4]) != []
    np.testing.assert_array_equal(again.predict(inputs, verbose=0), expected)


def test_files_that_name_a_mode_alone_still_load(freeze):
    freeze()
    layer = MultiHeadAttention(2, 4)
    layer(random(B, T, 8))
    config = {**layer.get_build_config(), "quantized": {"query": "int8", "value": "int8"}}
    again = MultiHeadAttention(2, 4)
    again.build_from_config(config)
    assert quantized(again) == ["query", "value"]


def test_int8_embedding_gives_logits_of_its_dequantized_table(freeze):
    freeze()
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
def test_normalizations_that_a_block_does_not_use(options, freeze):
    if "attention" in options:
        options = {"attention": MultiHeadAttention(2, 4)}
    block = keras_attention.TransformerBlock(
        8, 2, cross_attention=True, normalization="adaptive_entmax", **options
    )
    x = keras.Input((T, D))
    model = keras.Model(x, block(x, x))
    assert model.count_params() > 0
    freeze()
    model.quantize("int8")
    assert tuple(model(random(B, T, D)).shape) == (B, T, D)
