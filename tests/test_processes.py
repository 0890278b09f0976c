"""Layers in threads and processes: used and built by several, pickled, copied and cloned."""

import concurrent.futures
import copy
import pickle
import sys

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import patterns, positions, regularizers, scores
from tests.arrays import numpy, random
from tests.conformance import CASES
from tests.contract import registry
from tests.contract.registry import made, public
from tests.test_transforms import check_copy

BACKEND = keras.backend.backend()
COPIES = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy}

SLOTS = [
    patterns.Causal() & ~patterns.Dilated(3) | patterns.SlidingWindow(2, 0) | patterns.Prefix(1),
    regularizers.DoublyStochastic(0.2),
    *(made(cls) for module, base, _ in registry.SLOTS.values() for cls in public(module, base)),
]


# Copies


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("slot", SLOTS, ids=lambda slot: type(slot).__name__)
def test_slots_are_copied(slot, how):
    again = COPIES[how](slot)
    assert type(again) is type(slot) and again is not slot
    assert again.get_config() == slot.get_config()
    if not isinstance(slot, keras.layers.Layer):
        assert again == slot and hash(again) == hash(slot) and repr(again) == repr(slot)


def test_a_model_is_pickled_with_its_weights():
    """As it is saved, which `tests/contract` does with every layer."""
    (case,) = (case for case in CASES if str(case) == "TransformerBlock")
    check_copy(case, COPIES["pickle"])


@pytest.mark.parametrize("how", COPIES)
def test_caches_are_copied(how):
    layer = ka.MultiHeadAttention(2, 4)
    x = random(2, 5, 8)
    _, cache = layer(x[:, :3], cache=layer.make_cache(2, 5))
    if BACKEND == "torch":
        # PyTorch copies no tensor that is on its way to a gradient.
        cache = {name: array.detach() for name, array in cache.items()}
    expected, _ = layer(x[:, 3:], cache=cache)
    found, _ = layer(x[:, 3:], cache=COPIES[how](cache))
    np.testing.assert_array_equal(numpy(found), numpy(expected))


# Threads


def test_layers_are_built_in_threads():
    def build(policy):
        slots = {"score": scores.Additive(3), "position": positions.RelativeBias(4, 6)}
        layer = ka.MultiHeadAttention(2, 4, **slots, dtype=policy)
        output = layer(np.ones((2, 5, 8), "float32"))
        return keras.backend.standardize_dtype(output.dtype), len(layer.weights)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(build, ["float32", "mixed_bfloat16"] * 8))
    assert found == [("float32", 13), ("bfloat16", 13)] * 8


# Processes

NEAR = patterns.SlidingWindow(1, 0)
EMBED, ATTEND = ka.SinCosPositionEmbedding(), ka.SelfAttention(2, 4, pattern=NEAR)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.data computes with TensorFlow.")
def test_tf_data_maps_with_layers_and_patterns():
    import tensorflow as tf

    x = random(6, 5, 8)
    expected = numpy(ATTEND(EMBED(x)))
    data = tf.data.Dataset.from_tensor_slices(x).batch(2)
    data = data.map(lambda x: (ATTEND(EMBED(x)), NEAR(tf.range(5), tf.range(5))), 4)
    outputs, masks = zip(*data, strict=True)
    np.testing.assert_allclose(np.concatenate(outputs), expected, rtol=1e-5, atol=1e-6)
    assert all(numpy(mask).sum() == 9 for mask in masks)


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch's loader computes with PyTorch.")
@pytest.mark.skipif(sys.platform != "linux", reason="Workers are forked on Linux.")
def test_workers_of_a_data_loader_use_layers_and_patterns():
    import torch

    x = torch.tensor(random(6, 5, 8))
    expected = ATTEND(EMBED(x)).detach()

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, row):
            with torch.no_grad():
                return ATTEND(EMBED(x[row : row + 1]))[0], NEAR(range(5), range(5))

    # PyTorch warns of more workers than cores.
    loader = torch.utils.data.DataLoader(Rows(), 2, num_workers=1)
    outputs, masks = zip(*loader, strict=True)
    np.testing.assert_allclose(torch.cat(outputs), expected, rtol=1e-5, atol=1e-6)
    assert torch.cat(masks).sum() == 6 * 9
