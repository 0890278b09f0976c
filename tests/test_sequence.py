"""How tokens are counted, where tests/contract does not look: contexts, other axes and layers."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import scores
from tests.arrays import numpy, random
from tests.compiled import compiled

T, D = 7, 8
REAL = np.array(
    [[1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1], [1, 0, 0, 1, 0, 1, 1], [1] * 4 + [0] * 3], bool
)
ALONE = random(1, 4, D, seed=1)


def padded(alone, value=np.nan):
    x = np.full((len(REAL), T, *alone.shape[2:]), value, alone.dtype)
    x[REAL] = np.concatenate([alone[0]] * len(REAL))
    return x


X = padded(ALONE)


def assert_alone(found, expected):
    for row, real in zip(numpy(found), REAL, strict=True):
        np.testing.assert_allclose(row[real], numpy(expected)[0], atol=2e-5)


class Told(keras.layers.Layer):
    """A layer of somebody else, which takes arrays of positions alone."""

    def __init__(self):
        super().__init__()
        self.inner = ka.MultiHeadAttention(2, 4, position="rotary")

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x, query_mask=None, positions=None, **others):
        assert not isinstance(positions, str)
        return self.inner(x, query_mask=query_mask, positions=positions)


def test_a_layer_of_others_is_given_numbers():
    block = ka.TransformerBlock(12, 2, attention=Told())
    found, expected = compiled(
        lambda x, mask, alone: (block(x, mask=mask, positions="tokens"), block(alone)),
        *(X, REAL, ALONE),
    )
    assert_alone(found, expected)


@pytest.mark.parametrize("cached", [False, True])
def test_contexts_are_counted_too(cached):
    block = ka.TransformerBlock(
        12, 2, score=scores.Location(T), cross_attention=True, self_attention=False
    )
    x = random(len(REAL), 3, D, seed=4)
    expected = block(x[:1], ALONE)
    given = {"context_mask": REAL}
    memory = block.cache_context(X, REAL) if cached else X
    found = block(x[:1].repeat(4, 0), memory, positions="tokens", **({} if cached else given))
    np.testing.assert_allclose(numpy(found), numpy(expected).repeat(4, 0), atol=2e-5)


def test_a_stack_may_count_places():
    block = ka.TransformerBlock(12, 2, position="rotary")
    stack = ka.Encoder([block])
    by_places = numpy(stack(X, mask=REAL, positions="places"))[2][REAL[2]]
    alone = block(ALONE, positions=np.flatnonzero(REAL[2])[None])
    np.testing.assert_allclose(by_places, numpy(alone)[0], atol=2e-5)
    assert np.abs(by_places - numpy(stack(X, mask=REAL))[2][REAL[2]]).max() > 1e-3


@pytest.mark.parametrize(
    "layer",
    [
        ka.MultiHeadAttention(2, 4, attention_axes=(2,), position="rotary"),
        ka.LinformerAttention(2, 4, T, 3, attention_axes=(2,)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_layer_over_other_axes_counts_each_of_their_rows(layer):
    x, mask = np.stack([X, X[::-1]], 1), np.stack([REAL, REAL[::-1]], 1)
    found = numpy(layer(x, query_mask=mask, positions="tokens"))
    expected = numpy(layer(ALONE[:, None]))[:, 0]
    assert_alone(found[:, 0], expected)
    assert_alone(found[::-1, 1], expected)
