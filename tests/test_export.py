"""Exported models, run by the runtimes they are meant for: outputs are the model's own.

A runtime that is not installed skips its tests, and fails them where KERAS_ATTENTION_EXPORT is 1.
"""

import importlib
import os

import keras
import numpy as np
import pytest

import keras_attention
from keras_attention import patterns

BACKEND = keras.backend.backend()
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="dynamic lengths: TensorFlow's")
VOCABULARY, DIM = 50, 16
# A length of one, several texts, and one too long for a single block of scores.
SHAPES = [(2, 1), (3, 17), (1, 1500)]


def runtime(*names):
    """The modules of a runtime; skips the test, or fails it, where one is missing."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        if os.environ.get("KERAS_ATTENTION_EXPORT") == "1":
            raise
        pytest.skip(f"{error}: pip install 'keras_attention[export]'")


def tokens_of(batch, length, seed=0):
    """Token numbers, the second half of the last row being padding."""
    tokens = np.random.default_rng(seed).integers(1, VOCABULARY, (batch, length)).astype("int32")
    tokens[-1, (length + 1) // 2 :] = 0
    return tokens


# Classifiers: padding is masked, batch and length are open where not given.


def transformer(x):
    x = keras_attention.SinCosPositionEmbedding()(x)
    x = keras_attention.TransformerBlock(32, 2, dropout=0.1)(x)
    return keras_attention.AttentionPooling()(x)


def attending(layer, **options):
    def build(x):
        return keras.layers.GlobalAveragePooling1D()(layer(2, 8, **options)(x, x))

    return build


def without_projections(x):
    return keras.layers.GlobalAveragePooling1D()(keras_attention.Attention()(x, x))


HEADS = keras_attention.MultiHeadAttention
BODIES = {
    "transformer": transformer,
    "without projections": without_projections,
    "window": attending(HEADS, pattern=patterns.SlidingWindow(4, 4)),
    "causal": attending(HEADS, pattern="causal", use_sink=True, num_key_value_heads=1),
    "rotary": attending(HEADS, position="rotary", qk_norm="rms"),
    "alibi": attending(HEADS, position="alibi"),
    "relative_bias": attending(HEADS, position="relative_bias"),
    "shaw": attending(keras_attention.RelativePositionAttention, max_distance=4),
    "additive": attending(keras_attention.Attention, score="additive"),
}


def classifier(body, length=None, batch=None):
    tokens = keras.Input(batch_shape=(batch, length), dtype="int32", name="tokens")
    x = keras_attention.ScaledEmbedding(VOCABULARY, DIM, mask_zero=True)(tokens)
    model = keras.Model(tokens, keras.layers.Dense(2)(BODIES[body](x)))
    # Keras exports to ONNX only what has been called.
    model(tokens_of(batch or 2, length or 3))
    return model


def outputs_of(model, *inputs):
    found = model(*inputs)
    return keras.tree.map_structure(lambda x: np.array(keras.ops.convert_to_numpy(x)), found)


# Runtimes: from a model and a folder to a function of one array.


def saved_model(model, folder, **options):
    (tf,) = runtime("tensorflow")
    model.export(folder / "model", verbose=False, **options)
    loaded = tf.saved_model.load(folder / "model")
    return lambda array: loaded.serve(tf.constant(array)).numpy()


def onnx(model, folder, **options):
    names = ["onnx", "onnxruntime", {"tensorflow": "tf2onnx", "torch": "onnxscript"}[BACKEND]]
    _, onnxruntime, _ = runtime(*names)
    path = str(folder / "model.onnx")
    model.export(path, format="onnx", verbose=False, **options)
    session = onnxruntime.InferenceSession(path)
    (name,) = [given.name for given in session.get_inputs()]
    return lambda array: session.run(None, {name: array})[0]


def litert(model, folder, **options):
    (interpreter,) = runtime("ai_edge_litert.interpreter")
    path = str(folder / "model.tflite")
    model.export(path, format="litert", verbose=False, **options)
    program = interpreter.Interpreter(path)
    (given,), (returned,) = program.get_input_details(), program.get_output_details()

    def run(array):
        program.resize_tensor_input(given["index"], array.shape)
        program.allocate_tensors()
        program.set_tensor(given["index"], array)
        program.invoke()
        return program.get_tensor(returned["index"])

    return run


def check(run, model, shapes):
    for shape in shapes:
        tokens = tokens_of(*shape)
        np.testing.assert_allclose(run(tokens), outputs_of(model, tokens), rtol=1e-4, atol=1e-5)


@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("export", [saved_model, onnx])
def test_a_classifier_of_any_batch_and_length(export, body, tmp_path):
    model = classifier(body)
    check(export(model, tmp_path), model, SHAPES)


# Loops over blocks, which LiteRT takes where it knows their shapes.
@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("body", ["transformer", "window"])
def test_a_long_classifier_in_litert(body, tmp_path):
    model = classifier(body, length=1500, batch=1)
    check(litert(model, tmp_path), model, [(1, 1500)])


# The step of an encoder-decoder: caches go in and come out

LENGTH = 6


class Start(keras.Model):
    """What the decoder keeps of a source: keys, values and their mask."""

    def __init__(self, encode, decoder):
        super().__init__()
        self.encode, self.decoder = encode, decoder

    def call(self, source):
        return self.decoder.cache_context(self.encode(source))


def translator():
    """The whole model for training, `start` and `step` for decoding, of the same layers."""
    embedding = keras_attention.ScaledEmbedding(VOCABULARY, DIM, mask_zero=True, name="embedding")
    positions = keras_attention.SinCosPositionEmbedding(name="positions")
    encoder = keras_attention.TransformerBlock(32, 2, name="encoder")
    decoder = keras_attention.TransformerBlock(
        32, 2, causal=True, cross_attention=True, name="decoder"
    )
    decoder.build((None, None, DIM), (None, None, DIM))

    # The step first: of a layer's later calls, Keras finds no more outputs than its first one has.
    size = DIM // 2
    inputs = {
        "token": keras.Input((1,), dtype="int32", name="token"),
        "cache_key": keras.Input((2, LENGTH, size), name="cache_key"),
        "cache_value": keras.Input((2, LENGTH, size), name="cache_value"),
        "cache_index": keras.Input((), dtype="int32", name="cache_index"),
        "memory_key": keras.Input((2, None, size), name="memory_key"),
        "memory_value": keras.Input((2, None, size), name="memory_value"),
        "memory_mask": keras.Input((None,), dtype="bool", name="memory_mask"),
    }
    cache, memory = (
        {name.removeprefix(part): x for name, x in inputs.items() if name.startswith(part)}
        for part in ("cache_", "memory_")
    )
    x = positions(embedding(inputs["token"]), start_index=cache["index"])
    x, cache = decoder(x, memory, cache=cache)
    # Not the names of inputs, which ONNX would take for the same arrays.
    outputs = {f"next_{name}": array for name, array in cache.items()}
    step = keras.Model(inputs, {"logits": embedding(x, reverse=True), **outputs})

    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    encoded = encoder(positions(embedding(source)))
    x = decoder(positions(embedding(target)), encoded)
    whole = keras.Model([source, target], embedding(x, reverse=True))
    start = Start(keras.Model(source, encoded), decoder)
    # Keras exports only what has been called.
    start(tokens_of(2, 3))
    step({name: _zeros(symbol) for name, symbol in inputs.items()})
    return whole, start, step


def _zeros(symbol):
    sizes = [1 if size is None else size for size in symbol.shape]
    return keras.ops.zeros(sizes, symbol.dtype)


def decoded(step, memory, target):
    """Logits of all tokens of `target`, one step after the other."""
    rows, size = len(target), (2, LENGTH, DIM // 2)
    state = {
        "cache_key": np.zeros((rows, *size), "float32"),
        "cache_value": np.zeros((rows, *size), "float32"),
        "cache_index": np.zeros((rows,), "int32"),
    }
    fixed = {f"memory_{name}": array for name, array in memory.items()}
    found = []
    for index in range(LENGTH):
        returned = dict(step({"token": target[:, index : index + 1], **state, **fixed}))
        found.append(np.array(returned.pop("logits")))
        state = {name.replace("next", "cache"): np.array(x) for name, x in returned.items()}
    return np.concatenate(found, axis=1)


def saved_step(model, folder):
    (tf,) = runtime("tensorflow")
    model.export(folder / "model", verbose=False)
    loaded = tf.saved_model.load(folder / "model")
    return lambda arrays: loaded.serve({name: tf.constant(x) for name, x in arrays.items()})


def onnx_step(model, folder):
    _, onnxruntime, _ = runtime("onnx", "onnxruntime", "tf2onnx")
    path = str(folder / "model.onnx")
    model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path)
    names = [returned.name for returned in session.get_outputs()]
    return lambda arrays: dict(zip(names, session.run(None, arrays), strict=True))


def litert_step(model, folder):
    (interpreter,) = runtime("ai_edge_litert.interpreter")
    path = str(folder / "model.tflite")
    model.export(path, format="litert", verbose=False)
    program = interpreter.Interpreter(path)
    run = program.get_signature_runner()
    return lambda arrays: run(**arrays)


@on_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("export", [saved_step, onnx_step, litert_step])
def test_a_step_of_a_decoder_with_its_cache(export, tmp_path):
    whole, start, step = translator()
    source, target = tokens_of(2, 9), tokens_of(2, LENGTH, seed=1)
    target = np.maximum(target, 1)
    memory = outputs_of(start, source)
    expected = outputs_of(whole, [source, target])
    np.testing.assert_allclose(decoded(step, memory, target), expected, rtol=1e-4, atol=1e-5)
    run = export(step, tmp_path)
    np.testing.assert_allclose(decoded(run, memory, target), expected, rtol=1e-4, atol=1e-5)


@on_tensorflow
@pytest.mark.slow
def test_start_and_step_in_one_saved_model(tmp_path):
    tf = pytest.importorskip("tensorflow")
    whole, start, step = translator()
    source, target = tokens_of(2, 9), np.maximum(tokens_of(2, LENGTH, seed=1), 1)
    expected = outputs_of(whole, [source, target])
    archive = keras.export.ExportArchive()
    archive.track(start)
    archive.track(step)
    archive.add_endpoint("start", start.call, [keras.InputSpec(shape=(None, None), dtype="int32")])
    archive.add_endpoint(
        "step",
        step.call,
        [{name: keras.InputSpec(shape=x.shape, dtype=x.dtype) for name, x in step.input.items()}],
    )
    archive.write_out(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    memory = {name: x.numpy() for name, x in loaded.start(tf.constant(source)).items()}

    def run(arrays):
        return loaded.step({name: tf.constant(x) for name, x in arrays.items()})

    np.testing.assert_allclose(decoded(run, memory, target), expected, rtol=1e-4, atol=1e-5)
