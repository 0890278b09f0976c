"""Every public layer: its configuration, its `.h5` files, and its training in a model."""

import json

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import parts
from tests.arrays import numpy
from tests.compiled import SLOW_JIT_MODES
from tests.conformance import alone, outputs_of
from tests.layers.conformance_cases import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.mark.parametrize("case", [c for c in CASES if c.first], ids=str)
def test_every_argument_is_in_the_config(case):
    other = case.other_arguments
    defaults = case.make().get_config()
    for name, value in {**case.arguments, **other}.items():
        layer = case.layer(**{**case.arguments, **case.beside.get(name, {}), name: value})
        config = json.loads(json.dumps(layer.get_config()))
        if name in other:
            assert config[name] != defaults[name], f"{name}={value!r} is not in the config"
        again = case.layer.from_config(config)
        assert json.loads(json.dumps(again.get_config())) == config
        check_strings_that_name_functions(case.layer, config)
    named = case.make(name="given", dtype="mixed_bfloat16", trainable=False)
    again = case.layer.from_config(named.get_config())
    assert again.name == "given" and not again.trainable
    assert again.dtype_policy.name == "mixed_bfloat16"


def check_strings_that_name_functions(layer, config):
    """The reader of `.h5` files replaces strings by functions of `keras.layers`, or of others."""
    kind = keras.saving.get_registered_name(layer)
    strings = {
        v for n, v in config.items() if isinstance(v, str) and n not in ("name", "activation")
    }
    others = {name: lambda name=name: name for name in strings - set(vars(keras.layers))}
    again = keras.legacy.saving.deserialize_keras_object(
        {"class_name": kind, "config": dict(config)}, vars(keras.layers), {**others, kind: layer}
    )
    assert json.loads(json.dumps(again.get_config())) == config


@every_case
def test_h5_files(case, tmp_path):
    """Saved with a part frozen: the format orders trained weights before the others."""
    path = tmp_path / "model.h5"
    layer, symbols = case.make(), case.symbols()
    model = keras.Model(alone(symbols), case.call(layer, symbols))
    made = [weight.trainable for weight in model.weights]
    inner = [part for _, part in parts.named(layer) if part.weights]
    for part in inner[len(inner) // 2 :][:1]:
        part.trainable = False
        assert [weight.trainable for weight in model.weights] != made
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.uniform(0.5, 1.0, weight.shape))
    model.save(path)
    again = keras.models.load_model(path, compile=False)
    assert [w.trainable for w in again.weights] == [w.trainable for w in model.weights]
    for ours, other in zip(again.weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(other))


@pytest.mark.ci
@every_case
def test_training_in_float16(case):
    """With Keras's scaled losses, of which a gradient that is not finite would lower the scale."""
    layer, symbols, arrays = case.make(dtype="mixed_float16"), case.symbols(), case.arrays()
    output = outputs_of(case.call(layer, symbols))[0]
    model = keras.Model(alone(symbols), keras.layers.Dense(2, dtype="mixed_float16")(output))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), 2.0**10)
    # As a graph only where a step without one would be compiled piece by piece.
    eagerly = keras.backend.backend() != "jax"
    model.compile(optimizer, "mse", run_eagerly=eagerly, jit_compile=not eagerly)
    target = np.random.default_rng(1).normal(size=model(alone(arrays)).shape)
    before = [numpy(weight) for weight in model.trainable_weights]
    for _ in range(2):
        assert np.isfinite(model.train_on_batch(alone(arrays), target))
    assert float(numpy(optimizer.dynamic_scale)) == 2.0**10, "a gradient was not finite"
    for weight, old in zip(model.trainable_weights, before, strict=True):
        after = numpy(weight)
        assert np.isfinite(after).all(), weight.path
        if not weight.path.endswith("key/bias"):
            assert np.abs(after - old).max() > 0, f"{weight.path} did not move"


@every_case
@pytest.mark.parametrize("jit_compile", SLOW_JIT_MODES)
def test_one_training_step(case, jit_compile):
    layer = case.make()
    symbols = case.symbols(lengths=False)
    # The projection gives layers without weights something to train through.
    output = keras.layers.Dense(2)(outputs_of(case.call(layer, symbols))[0])
    model = keras.Model(alone(symbols), output)
    arrays = case.arrays()
    inputs = alone(arrays)
    target = np.random.default_rng(1).normal(size=model(inputs).shape)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    before = [numpy(weight) for weight in layer.trainable_weights]
    history = model.fit(inputs, target, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for weight, old in zip(layer.trainable_weights, before, strict=True):
        new = numpy(weight)
        assert np.isfinite(new).all(), weight.path
        # A bias of the keys shifts all scores of a query alike, which no softmax can see.
        if not weight.path.endswith("key/bias"):
            assert np.abs(new - old).max() > 0, f"{weight.path} did not change"


# A cell is no layer of sequences, a recurrent layer has a memory, a loss takes rewards, and patches
# are of images: test_attention_cell, test_attention_rnn, test_hard_attention and
# test_patch_embedding check them.
OTHERS = {"AttentionCell", "AttentionRNN", "PatchEmbedding", "ReinforceLoss"}
# Outputs are of float32 in every policy, and one takes four inputs: test_pointers.
OTHERS |= {"PointerGenerator", "PointerHead"}
# Of tokens; see tests/models.
OTHERS |= {"Decoder", "Embeddings", "Encoder", "EncoderDecoder", "Logits"}


def test_every_public_layer_has_a_case():
    public = {
        value
        for value in map(ka.__dict__.get, ka.__all__)
        if isinstance(value, type)
        and issubclass(value, keras.layers.Layer)
        and value.__name__ not in OTHERS
    }
    assert public == {case.layer for case in CASES}
    assert public == {case.layer for case in CASES if case.first}
