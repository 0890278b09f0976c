"""Models exported to files, run by the runtimes of their formats: outputs are the model's own.

A runtime that is not installed skips its tests, and fails them where KERAS_ATTENTION_EXPORT is 1.
"""

import functools
import importlib
import importlib.util
import os
import warnings

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns
from tests.arrays import numpy, random
from tests.compiled import compiled
from tests.conformance import CASES, alone, outputs_of
from tests.transforms import BACKEND, check, close

# On TensorFlow, an export takes seconds for each layer.
pytestmark = pytest.mark.ci
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="dynamic lengths: TensorFlow's")


def runtime(name):
    """The module that runs a format; skips the test, or fails it, where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("KERAS_ATTENTION_EXPORT") == "1" and name != "openvino":
            raise
        pytest.skip(f"{error}: pip install -e '.[export]'")


# Formats: from a model and a path to a function of what the model takes, a list or a dictionary.


def export(model, path, format, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.export(path, format=format, verbose=False, **options)
    return path


def saved_model(model, path):
    export(model, path, "tf_saved_model")
    tf = runtime("tensorflow")
    loaded = tf.saved_model.load(path)
    return lambda given: loaded.serve(keras.tree.map_structure(tf.constant, alone(given)))


def own_format(model, path):
    own = {"tensorflow": own_of_tensorflow, "jax": own_of_jax, "torch": own_of_torch}[BACKEND]
    return own(model, path)


def own_of_tensorflow(model, path):
    import tensorflow as tf

    module = tf.Module()
    module.model = model
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in model.inputs]
    module.run = tf.function(lambda *arrays: model(alone(arrays)), input_signature=specs)
    tf.saved_model.save(module, path)
    loaded = tf.saved_model.load(path)
    return lambda arrays: loaded.run(*arrays)


def own_of_jax(model, path):
    import jax
    from jax import export

    (batch,) = export.symbolic_shape("batch")
    shapes = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in model.inputs]
    program = jax.jit(lambda *arrays: model(alone(arrays)))
    loaded = export.deserialize(export.export(program)(*shapes).serialize())
    return lambda arrays: loaded.call(*arrays)


def own_of_torch(model, path):
    import torch

    sizes = [{0: torch.export.Dim("batch", min=1, max=100)} for _ in model.inputs]
    given = sizes[0] if len(sizes) == 1 else [(sizes,)]
    path = export(model, path + ".pt2", "torch", dynamic_shapes=given)
    program = torch.export.load(path).module()
    return lambda arrays: program(alone([torch.tensor(x) for x in arrays]))


def onnx(model, path):
    if BACKEND != "jax":
        runtime("tf2onnx" if BACKEND == "tensorflow" else "onnx")
    elif importlib.util.find_spec("jax2onnx"):
        pytest.skip("the cell is of Keras without it")
    session = runtime("onnxruntime").InferenceSession(export(model, path + ".onnx", "onnx"))
    inputs, outputs = ([x.name for x in f()] for f in (session.get_inputs, session.get_outputs))

    def run(given):
        if isinstance(given, dict):
            return dict(zip(outputs, session.run(None, given), strict=True))
        return session.run(None, dict(zip(inputs, given, strict=True)))

    return run


def litert(model, path):
    if BACKEND == "torch" and importlib.util.find_spec("litert_torch"):
        pytest.skip("the cell is of Keras without it")
    path = export(model, path + ".tflite", "litert")
    program = runtime("ai_edge_litert.interpreter").Interpreter(path).get_signature_runner()
    names = [symbol.name for symbol in model.inputs]

    def run(given):
        if isinstance(given, dict):
            return program(**given)
        found = program(**dict(zip(names, given, strict=True)))
        return [found[f"output_{number}"] for number in range(len(found))]

    return run


def openvino(model, path):
    core = runtime("openvino").Core()
    path = export(model, path + ".xml", "openvino")
    program = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda arrays: list(program(arrays).values())


# By the rows of the table in docs/backends.md.
FORMATS = {
    "SavedModel": saved_model,
    "own format": own_format,
    "ONNX": onnx,
    "LiteRT": litert,
    "OpenVINO": openvino,
}
# One file has many layers. TensorFlow may be older than JAX, and not know what experts need there.
GROUPS = {
    f"{number + 1} of 3": [
        case for case in CASES[number::3] if case.layer is not ka.MixtureOfExperts
    ]
    for number in range(3)
}
GROUPS["experts"] = [case for case in CASES if case.layer is ka.MixtureOfExperts]


@functools.cache
def side_by_side(group):
    """A model of layers, batches of two numbers of rows, and its outputs for each."""
    cases = GROUPS[group]
    inputs = [case.symbols() for case in cases]
    outputs = [
        outputs_of(case.call(case.make(), symbols))[0]
        for case, symbols in zip(cases, inputs, strict=True)
    ]
    model = keras.Model(alone([x for symbols in inputs for x in symbols]), alone(outputs))
    arrays = [array for case in cases for array in case.arrays()]
    batches = [arrays, [np.concatenate([x, x])[:5] for x in arrays]]
    # Keras exports only what has been called, here or in a program.
    expected = [compiled(lambda *arrays: model(alone(arrays)), *batch) for batch in batches]
    return model, batches, expected


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("row", FORMATS)
def test_layers_with_unknown_numbers_of_rows(row, group, tmp_path):
    model, batches, expected = side_by_side(group)

    def run():
        program = FORMATS[row](model, str(tmp_path / "model"))
        for batch, outputs in zip(batches, expected, strict=True):
            try:
                found = program(batch)
            except Exception as error:
                if "failed to deserialize portable artifact" not in str(error):
                    raise
                assert group == "experts"
                pytest.skip("TensorFlow is older than JAX, and does not know an operation of it")
            for one, other in zip(*map(keras.tree.flatten, (found, outputs)), strict=True):
                close(one, other)

    check(row, run)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's exporter")
@pytest.mark.parametrize("name", ["RMSNormalization", "LayerNormalization"])
def test_norms_of_keras_in_onnx_of_pytorch(name, tmp_path):
    """What docs/exporting.md says of them: no layer of ours needs them there."""
    symbol = keras.Input((5, 8))
    model = keras.Model(symbol, getattr(keras.layers, name)()(symbol))
    model(np.ones((3, 5, 8), "float32"))
    message = {"RMSNormalization": "rms_norm", "LayerNormalization": "Failed to export a node"}
    with pytest.raises(Exception, match=message[name]):
        export(model, str(tmp_path / "model.onnx"), "onnx")


@pytest.mark.skipif(BACKEND != "torch", reason="Keras records an unknown length as 1 there")
@pytest.mark.parametrize("length", [None, 5])
def test_onnx_of_an_unknown_length_warns(length, tmp_path):
    symbol = keras.Input((length, 8))
    model = keras.Model(symbol, ka.MultiHeadAttention(2, 4)(symbol))
    model(np.ones((3, 5, 8), "float32"))
    runtime("onnx")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.export(str(tmp_path / "model.onnx"), format="onnx", verbose=False)
    found = [str(warning.message) for warning in caught if "one key" in str(warning.message)]
    assert bool(found) == (length is None)
    assert all("keras.Input((128, 64))" in message for message in found)


# Classifiers of texts: padding is masked, batch and length are open where not given

VOCABULARY, DIM = 50, 16


def tokens_of(batch, length, seed=0):
    """Token numbers, the second half of the last row being padding."""
    tokens = np.random.default_rng(seed).integers(1, VOCABULARY, (batch, length)).astype("int32")
    tokens[-1, (length + 1) // 2 :] = 0
    return tokens


def transformer(x):
    x = ka.SinCosPositionEmbedding()(x)
    return ka.AttentionPooling()(ka.TransformerBlock(32, 2, dropout=0.1)(x))


def attending(layer, **options):
    return lambda x: keras.layers.GlobalAveragePooling1D()(layer(**options)(x, x))


HEADS = {"num_heads": 2, "key_dim": 8}
WINDOW = patterns.SlidingWindow(4, 4)
OF_TODAY = {"use_sink": True, "num_key_value_heads": 1, "position": "rotary", "qk_norm": "rms"}
BODIES = [
    transformer,
    attending(ka.MultiHeadAttention, pattern=WINDOW, position="alibi", **HEADS),
    attending(ka.Attention),
    attending(ka.MultiHeadAttention, pattern="causal", **OF_TODAY, **HEADS),
    attending(ka.MultiHeadAttention, position="relative_bias", **HEADS),
    attending(ka.RelativePositionAttention, max_distance=4, **HEADS),
    attending(ka.Attention, score="additive", **HEADS),
]


def check_classifiers(format, bodies, folder, shapes, length=None, batch=None):
    """A model has each of the bodies; each has loops over blocks for texts that need several."""
    tokens = keras.Input(batch_shape=(batch, length), dtype="int32", name="tokens")
    x = ka.ScaledEmbedding(VOCABULARY, DIM, mask_zero=True)(tokens)
    model = keras.Model(tokens, [keras.layers.Dense(2)(body(x)) for body in bodies])
    # Keras exports to ONNX only what has been called.
    model(tokens_of(batch or 2, length or 3))
    run = format(model, str(folder / "model"))
    for shape in shapes:
        given = tokens_of(*shape)
        for one, other in zip(run([given]), model(given), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@on_tensorflow
@pytest.mark.parametrize("format", [saved_model, onnx])
def test_classifiers_of_any_batch_and_length(format, tmp_path):
    # A length of one, several texts, and one too long for a single block of scores.
    check_classifiers(format, BODIES, tmp_path, [(2, 1), (3, 17), (1, 1500)])


# Loops over blocks, which LiteRT takes where it knows their shapes.
@on_tensorflow
def test_long_classifiers_in_litert(tmp_path):
    check_classifiers(litert, BODIES[:2], tmp_path, [(1, 1500)], length=1500, batch=1)


# The step of an encoder-decoder: caches go in and come out


def step_of_a_decoder():
    """A block, its step as a model, and calls of the step where three of six tokens are there."""
    block = ka.TransformerBlock(32, 2, causal=True, cross_attention=True)
    block.build((None, None, DIM), (None, None, DIM))
    calls = []
    for rows, length in ((2, 9), (3, 5)):
        x, context = random(rows, 4, DIM, seed=1), random(rows, length, DIM, seed=2)
        memory = block.cache_context(context)
        _, cache = block(x[:, :3], memory, cache=block.make_cache(rows, 6))
        arrays = {f"cache_{name}": array for name, array in cache.items()}
        arrays |= {f"memory_{name}": array for name, array in memory.items()}
        calls.append({"x": x[:, 3:], **{name: numpy(array) for name, array in arrays.items()}})
    inputs = {}
    for name, x in calls[0].items():
        # The length of a context is unknown.
        shape = [None if size == 9 else size for size in x.shape[1:]]
        inputs[name] = keras.Input(shape, dtype=x.dtype.name, name=name)
    cache, memory = (
        {name.removeprefix(part): x for name, x in inputs.items() if name.startswith(part)}
        for part in ("cache_", "memory_")
    )
    output, cache = block(inputs["x"], memory, cache=cache)
    # Not the names of inputs, which ONNX would take for the same arrays.
    outputs = {"output": output, **{f"next_{name}": array for name, array in cache.items()}}
    return block, keras.Model(inputs, outputs), calls


@on_tensorflow
def test_a_step_of_a_decoder_with_its_cache(tmp_path):
    import tensorflow as tf

    block, step, calls = step_of_a_decoder()
    step(calls[0])
    runs = [f(step, str(tmp_path / "step")) for f in (saved_model, onnx, litert)]
    for given in calls:
        for run in runs:
            found = run(given)
            for key, expected in step(given).items():
                close(found[key], expected)
    # The context and the step as functions of one file.
    archive = keras.export.ExportArchive()
    archive.track(step)
    archive.add_endpoint(
        "start", block.cache_context, [keras.InputSpec(shape=(None, None, DIM), dtype="float32")]
    )
    specs = {name: keras.InputSpec(shape=x.shape, dtype=x.dtype) for name, x in step.input.items()}
    archive.add_endpoint("step", step.call, [specs])
    archive.write_out(tmp_path / "both", verbose=False)
    both = tf.saved_model.load(tmp_path / "both")
    context = random(2, 9, DIM, seed=2)
    memory = both.start(tf.constant(context))
    given = {**calls[0], **{f"memory_{name}": x for name, x in memory.items()}}
    found = both.step({name: tf.constant(x) for name, x in given.items()})
    close(found["output"], step(calls[0])["output"])
