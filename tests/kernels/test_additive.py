"""Additive scores against their equation, however many units are held at once."""

import keras
import numpy as np
import pytest

from keras_attention.kernels import additive as kernel
from keras_attention.kernels.tiles import strategies
from tests import definition
from tests.arrays import numpy, random
from tests.gradients import gradients
from tests.problems import in_a_graph

tensor = keras.ops.convert_to_tensor
B, T, S, H, U = 2, 4, 5, 3, 7
# Limits that make one chunk, three of 3, 3 and 1 units, and one for each unit.
LIMITS = {"whole": 2**20, "chunks": 3 * T * S, "units": 1}


QUERY, KEY, V = random(B, T, H, U, seed=1), random(B, S, H, U, seed=2), random(H, U, seed=3)
UPSTREAM = random(B, H, T, S, seed=4)


def by_definition(query, key, v):
    table = np.zeros((len(query), query.shape[2], query.shape[1], key.shape[1]))
    for b, h, t, s in np.ndindex(table.shape):
        table[b, h, t, s] = definition.perceptron(query[b, t, h] + key[b, s, h], v[h])
    return table


def unknown_lengths(**options):
    """As `gradients`, in a graph of TensorFlow that knows neither the batch nor lengths."""
    import tensorflow as tf

    shapes = [(None, None, H, U), (None, None, H, U), (H, U), (None, H, None, None)]
    signature = [[tf.TensorSpec(shape) for shape in shapes]]
    return lambda *x: in_a_graph(*x, input_signature=signature, **options)


WAYS = {"as it is": lambda: gradients}
if keras.backend.backend() == "tensorflow":
    WAYS |= {"graph": unknown_lengths, "XLA": lambda: unknown_lengths(jit_compile=True)}


@pytest.fixture(params=LIMITS)
def limit(request):
    with strategies.using(hidden=LIMITS[request.param]):
        yield request.param


@pytest.mark.parametrize("way", WAYS)
def test_scores_and_gradients_are_those_of_the_definition(limit, way):
    arrays = [QUERY[:1, :2], KEY[:1], V, UPSTREAM[:1, :, :2]]
    # The gradient by what it is multiplied by is the scores.
    expected = definition.gradients(lambda *x: (by_definition(*x[:3]) * x[3]).sum(), arrays)
    found = WAYS[way]()(lambda *x: kernel.additive(*x[:3]) * x[3], list(map(tensor, arrays)))
    for gradient, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-4, atol=1e-5)


def test_huge_arguments_give_numbers(limit):
    query, key = 1e17 * QUERY, 1e17 * KEY
    found = numpy(kernel.additive(*map(tensor, (query, key, V))))
    expected = np.einsum("btshu,hu->bhts", np.sign(query[:, :, None] + key[:, None]), V)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    found = gradients(lambda *x: kernel.additive(*x) * tensor(UPSTREAM), [query, key, V])
    assert not any(gradient.any() for gradient in found[:2])


def test_chunks_are_as_large_as_the_limit_allows():
    for queries, keys, units, size in (
        (80, 80, 128, 128), (512, 512, 256, 4), (2048, 2048, 128, 1), (10**5, 10**5, 3, 1),
        (None, None, 5, 1), (1, None, 512, 512), (0, 5, 6, 6),
        # 7 units in chunks of at most 3 are 3 and 3 and 1, not padded beyond the last.
        (512, 512, 7, 4), (512, 612, 7, 3),
    ):  # fmt: skip
        assert kernel.chunk(queries, keys, units) == size
    for units in range(1, 40):
        for keys in (2**10, 3000, 2**14, 2**16):
            size = kernel.chunk(16, keys, units)
            assert size == 1 or size * 16 * keys <= 2**20
            assert units <= -(-units // size) * size < units + -(-units // size)


def test_it_never_holds_all_units(monkeypatch):
    largest = []
    tanh = keras.ops.tanh

    def watching(array):
        largest.append(int(np.prod(array.shape)))
        return tanh(array)

    monkeypatch.setattr(kernel.ops, "tanh", watching)
    query, key, v = random(1, 600, 1, 8), random(1, 700, 1, 8), random(1, 8)
    gradients(kernel.additive, [query, key, v])
    # In both directions, two units at a time.
    assert len(largest) >= 2 and max(largest) == 2 * 600 * 700
