"""Layers in threads and processes: used and built by several, pickled, copied and cloned."""

import concurrent.futures
import copy
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import normalizations, patterns, positions, regularizers, scores
from tests.arrays import numpy
from tests.conformance import outputs_of
from tests.layers.conformance_cases import CASES

BACKEND = keras.backend.backend()
ONCE = [case for case in CASES if case.other_arguments is not None]
COPIES = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy}

PLAIN = [
    patterns.Causal() & ~patterns.Dilated(3) | patterns.SlidingWindow(2, 0) | patterns.Prefix(1),
    patterns.Strided(3) & patterns.Block(4),
    normalizations.Softmax(),
    normalizations.Sigmoid(),
    normalizations.Sparsemax(),
    normalizations.Hard(temperature=0.5),
    regularizers.Entropy(0.1),
    regularizers.DoublyStochastic(0.2),
]


def model_of(case):
    layer = case.make()
    symbols = case.symbols(lengths=False)
    return keras.Model(symbols, outputs_of(case.call(layer, symbols))[0])


def perturbed(model):
    """Weights that no initializer gives."""
    draw = np.random.default_rng(3)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1 * draw.normal(size=weight.shape))
    return model


# Copies


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("slot", PLAIN, ids=repr)
def test_plain_slots_are_copied(slot, how):
    again = COPIES[how](slot)
    assert again == slot and again is not slot and hash(again) == hash(slot)
    assert repr(again) == repr(slot)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("case", ONCE, ids=str)
def test_models_are_copied_with_their_weights(case, how):
    model, arrays = perturbed(model_of(case)), case.arrays()
    again = COPIES[how](model)
    np.testing.assert_array_equal(numpy(again(arrays)), numpy(model(arrays)))
    for weight in again.trainable_weights:
        # Of its own: to change one is not to change the other.
        weight.assign(np.zeros(weight.shape, "float32"))
    if model.trainable_weights:
        assert any(np.abs(numpy(weight)).max() > 0 for weight in model.trainable_weights)


@pytest.mark.parametrize("how", COPIES)
def test_caches_are_copied(how):
    layer = ka.MultiHeadAttention(2, 4)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    _, cache = layer(x[:, :3], cache=layer.make_cache(2, 5))
    if BACKEND == "torch":
        # PyTorch copies no tensor that is on its way to a gradient.
        cache = {name: array.detach() for name, array in cache.items()}
    expected, _ = layer(x[:, 3:], cache=cache)
    found, _ = layer(x[:, 3:], cache=COPIES[how](cache))
    np.testing.assert_array_equal(numpy(found), numpy(expected))


# Threads


def in_threads(function, items):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(function, items))


def test_eight_threads_predict_as_one_does():
    case = next(case for case in CASES if str(case) == "MultiHeadAttention-grouped")
    block = ka.TransformerBlock(8, 2, position="rotary", pattern=patterns.SlidingWindow(2, 1))
    model = model_of(case)
    model = keras.Model(model.inputs, block(model.output))
    batches = [case.arrays(seed) for seed in range(16)]
    expected = [numpy(model(arrays)) for arrays in batches]
    for found, alone in zip(in_threads(lambda a: numpy(model(a)), batches), expected, strict=True):
        np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-5)


def test_eight_threads_append_to_caches_of_their_own():
    layer = ka.MultiHeadAttention(2, 4, position="rotary", pattern=patterns.SlidingWindow(3, 0))
    draw = np.random.default_rng(0)
    inputs = [draw.normal(size=(2, 6, 8)).astype("float32") for _ in range(8)]
    layer(inputs[0])

    def decode(x):
        cache, outputs = layer.make_cache(2, 6), []
        for t in range(6):
            output, cache = layer(x[:, t : t + 1], cache=cache)
            outputs.append(numpy(output))
        return np.concatenate(outputs, axis=1)

    for x, found in zip(inputs, in_threads(decode, inputs), strict=True):
        expected = numpy(layer(x, use_causal_mask=True))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_layers_are_built_in_threads():
    policies = ["float32", "bfloat16"]

    def build(number):
        layer = ka.MultiHeadAttention(
            2,
            4,
            score=scores.Additive(3),
            position=positions.RelativeBias(4, 6),
            dtype=["float32", "mixed_bfloat16"][number % 2],
        )
        output = layer(np.ones((2, 5, 8), "float32"))
        return keras.backend.standardize_dtype(output.dtype), len(layer.weights)

    assert in_threads(build, range(16)) == [(policies[n % 2], 13) for n in range(16)]


# Processes


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.data computes with TensorFlow.")
def test_tf_data_maps_with_layers_and_patterns():
    import tensorflow as tf

    embed, near = ka.SinCosPositionEmbedding(), patterns.SlidingWindow(1, 0)
    attention = ka.SelfAttention(2, 4, pattern=near)
    x = np.random.default_rng(0).normal(size=(6, 5, 8)).astype("float32")
    expected = numpy(attention(embed(x)))
    data = tf.data.Dataset.from_tensor_slices(x).batch(2)
    data = data.map(lambda x: (attention(embed(x)), near(tf.range(5), tf.range(5))), 4)
    outputs, masks = zip(*data, strict=True)
    np.testing.assert_allclose(np.concatenate(outputs), expected, rtol=1e-5, atol=1e-6)
    assert all(numpy(mask).sum() == 9 for mask in masks)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's loader computes with PyTorch.")
@pytest.mark.skipif(sys.platform != "linux", reason="Workers are forked on Linux.")
def test_workers_of_a_data_loader_use_layers_and_patterns():
    import torch

    x = torch.tensor(np.random.default_rng(0).normal(size=(6, 5, 8)).astype("float32"))
    embed, near = ka.SinCosPositionEmbedding(), patterns.SlidingWindow(1, 0)
    attention = ka.SelfAttention(2, 4, pattern=near)
    expected = attention(embed(x)).detach()

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, row):
            with torch.no_grad():
                return attention(embed(x[row : row + 1]))[0], near(range(5), range(5))

    # PyTorch warns of more workers than cores.
    loader = torch.utils.data.DataLoader(Rows(), 2, num_workers=1)
    outputs, masks = zip(*loader, strict=True)
    np.testing.assert_allclose(torch.cat(outputs), expected, rtol=1e-5, atol=1e-6)
    assert torch.cat(masks).sum() == 6 * 9


SPAWNED = """
import pickle, sys
import keras
import keras_attention
layer, pattern, x = pickle.load(sys.stdin.buffer)
output = keras.ops.convert_to_numpy(layer(x))
sys.stdout.buffer.write(pickle.dumps((output, repr(pattern))))
"""


@pytest.mark.slow
def test_a_new_process_gets_layers_and_patterns():
    layer = ka.SelfAttention(2, 4, pattern=patterns.Causal() & patterns.Dilated(2))
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    expected = numpy(layer(x))
    sent = pickle.dumps((layer, layer.pattern, x))
    run = subprocess.run(
        [sys.executable, "-c", SPAWNED], input=sent, capture_output=True, check=True
    )
    found, shown = pickle.loads(run.stdout)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert shown == repr(layer.pattern)
