"""Integers and booleans as inputs of every layer: counts, pixels, flags."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests import conformance
from tests.layers.conformance_cases import CASES
from tests.pairwise import pairwise

FLOATS = [case for case in CASES if case.float_inputs]


@pytest.mark.parametrize("case, dtype", pairwise(FLOATS, ["int32", "uint8", "bool"]), ids=str)
def test_integers_are_the_floats_that_they_are(case, dtype):
    conformance.check_integers_are_the_floats_that_they_are(case, dtype)


def stack(kind, **block):
    # Without embeddings, so that what it is called with are vectors.
    return lambda: kind([ka.TransformerBlock(16, 2, **block)], final_norm=ka.RMSNorm())


TABLE = np.random.default_rng(0).normal(size=(7, 8)).astype("float32")
PARTS = {
    "encoder": (stack(ka.Encoder), 1),
    "decoder": (stack(ka.Decoder, causal=True, cross_attention=True, residual="pre"), 2),
    "logits": (lambda: ka.Logits(7, tied=False, scale=0.3, soft_cap=3.0), 1),
    "logits, tied": (
        lambda: ka.Logits(7, scale=0.3, transform=keras.layers.LayerNormalization()),
        1,
    ),
    "recurrent": (lambda: ka.AttentionRNN(ka.AttentionCell(keras.layers.GRUCell(4), "general")), 2),
}


@pytest.mark.parametrize("name, dtype", pairwise(list(PARTS), ["int32", "bool"]))
def test_parts_of_models_and_recurrent_layers_too(name, dtype):
    make, count = PARTS[name]
    layer, rng = make(), np.random.default_rng(0)
    arrays = [rng.integers(0, 3, (2, 5, 8)).astype(dtype) for _ in range(count)]
    further = [TABLE] if getattr(layer, "tied", False) else []
    expected = layer(*(array.astype("float32") for array in arrays), *further)
    found = layer(*arrays, *further)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(*map(conformance.numpy, (found, expected)), atol=1e-5)
