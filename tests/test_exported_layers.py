"""Every layer exported to each format, and run by the runtime of that format, for another batch."""

import importlib
import importlib.util
import os
import warnings

import keras
import numpy as np
import pytest

from keras_attention import MultiHeadAttention
from tests.compiled import compiled
from tests.conformance import alone, outputs_of
from tests.transforms import BACKEND, Problem, check, close, every_case

# On TensorFlow, each format takes seconds for each layer, and so do all together a file's time.
pytestmark = pytest.mark.ci


def runtime(name):
    """The module that runs a format; skips the test, or fails it, where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if os.environ.get("KERAS_ATTENTION_EXPORT") == "1" and name != "openvino":
            raise
        pytest.skip(f"{name} is not installed")


class Exported:
    """A model of a layer, which has been called, and a path to export it to."""

    def __init__(self, case, folder, batch=None):
        self.case, self.path = case, str(folder / "model")
        # The inputs are numbered from 9 on: in the order of their names, the tenth comes first.
        keras.backend.clear_session(free_memory=False)
        for _ in range(9):
            keras.Input(())
        symbols = case.symbols(batch, lengths=True)
        self.model = keras.Model(alone(symbols), outputs_of(case.call(case.make(), symbols))[0])
        self.arrays = case.arrays()
        self.two = [np.concatenate([array, array])[:5] for array in self.arrays]
        # Keras exports only what has been called: on JAX, traced.
        if BACKEND == "jax":
            import jax

            jax.make_jaxpr(self.call)(*self.arrays)
        else:
            self.call(*self.arrays)

    def call(self, *arrays):
        return self.model(alone(arrays))

    def write(self, format, suffix="", **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.export(self.path + suffix, format=format, verbose=False, **options)
        return self.path + suffix

    def check(self, found, batches=None):
        """`found(arrays)` is the model's, for the batch it was made with and for another."""
        for given in batches or (self.arrays, self.two):
            close(found(given), compiled(self.call, *given))


@every_case
def test_saved_model(case, tmp_path):
    def run():
        exported = Exported(case, tmp_path)
        path = exported.write("tf_saved_model")
        tf = runtime("tensorflow")
        served = tf.saved_model.load(path)
        try:
            exported.check(lambda arrays: served.serve(alone([tf.constant(x) for x in arrays])))
        except tf.errors.InvalidArgumentError as error:
            if "failed to deserialize portable artifact" not in str(error):
                raise
            pytest.skip("TensorFlow is older than JAX, and does not know an operation of its files")

    check("SavedModel", run)


@every_case
def test_own_format(case, tmp_path):
    def run():
        {"tensorflow": own_of_tensorflow, "jax": own_of_jax, "torch": own_of_torch}[BACKEND](
            case, tmp_path
        )

    check("own format", run)


def own_of_tensorflow(case, folder):
    import tensorflow as tf

    p, module = Problem(case), tf.Module()
    module.layer = p.layer
    specs = [tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in p.arrays]
    module.run = tf.function(p.call, input_signature=specs)
    tf.saved_model.save(module, str(folder))
    loaded = tf.saved_model.load(str(folder))
    close(loaded.run(*p.two()), p.call(*p.two()))


def own_of_jax(case, folder):
    import jax
    from jax import export

    p = Problem(case)
    (batch,) = export.symbolic_shape("batch")
    shapes = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in p.arrays]
    written = export.export(jax.jit(p.call))(*shapes).serialize()
    close(export.deserialize(written).call(*p.two()), jax.jit(p.call)(*p.two()))


def own_of_torch(case, folder):
    import torch

    exported = Exported(case, folder)
    sizes = [{0: torch.export.Dim("batch", min=1, max=100)} for _ in exported.arrays]
    given = sizes[0] if len(sizes) == 1 else [(sizes,)]
    path = exported.write("torch", ".pt2", dynamic_shapes=given)
    program = torch.export.load(path).module()
    exported.check(lambda arrays: program(alone([torch.tensor(x) for x in arrays])).detach())


@every_case
def test_onnx(case, tmp_path):
    if BACKEND == "jax" and importlib.util.find_spec("jax2onnx"):
        pytest.skip("the cell is of Keras without it")

    def run():
        exported = Exported(case, tmp_path)
        path = exported.write("onnx", ".onnx")
        session = runtime("onnxruntime").InferenceSession(path)
        names = [given.name for given in session.get_inputs()]
        exported.check(lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))[0])

    if BACKEND != "jax":
        runtime("tf2onnx" if BACKEND == "tensorflow" else "onnx")
    check("ONNX", run)


@every_case
def test_litert(case, tmp_path):
    if BACKEND == "torch" and importlib.util.find_spec("litert_torch"):
        pytest.skip("the cell is of Keras without it")

    def run():
        exported = Exported(case, tmp_path)
        path = exported.write("litert", ".tflite")
        program = runtime("ai_edge_litert.interpreter").Interpreter(path).get_signature_runner()
        names = [symbol.name for symbol in exported.model.inputs]

        def found(arrays):
            (output,) = program(**dict(zip(names, arrays, strict=True))).values()
            return output

        exported.check(found)

    check("LiteRT", run)


@every_case
def test_openvino(case, tmp_path):
    openvino = runtime("openvino")

    def run():
        exported = Exported(case, tmp_path)
        path = exported.write("openvino", ".xml")
        precise = {"INFERENCE_PRECISION_HINT": "f32"}
        program = openvino.Core().compile_model(path, "CPU", precise)
        exported.check(lambda arrays: next(iter(program(arrays).values())))

    check("OpenVINO", run)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's exporter")
@pytest.mark.parametrize("name", ["RMSNormalization", "LayerNormalization"])
def test_norms_of_keras_in_onnx_of_pytorch(name, tmp_path):
    """What docs/exporting.md says of them: no layer of ours needs them there."""
    symbol = keras.Input((5, 8))
    model = keras.Model(symbol, getattr(keras.layers, name)()(symbol))
    model(np.ones((3, 5, 8), "float32"))
    message = {"RMSNormalization": "rms_norm", "LayerNormalization": "Failed to export a node"}
    with pytest.raises(Exception, match=message[name]):
        model.export(str(tmp_path / "model.onnx"), format="onnx", verbose=False)


@pytest.mark.skipif(BACKEND != "torch", reason="Keras records an unknown length as 1 there")
@pytest.mark.parametrize("length", [None, 5])
def test_onnx_of_an_unknown_length_warns(length, tmp_path):
    symbol = keras.Input((length, 8))
    model = keras.Model(symbol, MultiHeadAttention(2, 4)(symbol))
    model(np.ones((3, 5, 8), "float32"))
    runtime("onnx")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.export(str(tmp_path / "model.onnx"), format="onnx", verbose=False)
    found = [str(warning.message) for warning in caught if "one key" in str(warning.message)]
    assert bool(found) == (length is None)
    assert all("keras.Input((128, 64))" in message for message in found)
