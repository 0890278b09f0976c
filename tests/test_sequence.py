"""How tokens are counted: by "tokens" the row alone everywhere, by "places" a row with holes."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import positions, scores, sequence
from tests.arrays import numpy, random
from tests.compiled import compiled
from tests.gradients import gradients

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


def test_ranks_are_those_of_each_text():
    rng = np.random.default_rng(0)
    real, texts = rng.random((5, 12)) < 0.7, rng.integers(-1, 3, (5, 12)).astype("int32")
    found = numpy(sequence.ranks(real, texts)), numpy(sequence.ranks(real))
    for row, t in np.ndindex(real.shape):
        if real[row, t]:
            same = real[row, :t] & (texts[row, :t] == texts[row, t])
            assert found[0][row, t] == same.sum() and found[1][row, t] == real[row, :t].sum()


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


BLOCKS = {
    "rotary": lambda: ka.TransformerBlock(12, 2, causal=True, position="rotary"),
    "longformer": lambda: ka.TransformerBlock(
        12, 2, attention=ka.LongformerAttention(2, 4, 1, num_global=2)
    ),
    "convolved": lambda: ka.TransformerBlock(
        12, 2, causal=True, attention=ka.GatedDeltaNet(2, 4, conv_kernel_size=3)
    ),
    "of others": lambda: ka.TransformerBlock(12, 2, attention=Told()),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_by_tokens_is_the_row_alone(name):
    block = BLOCKS[name]()
    found, expected = compiled(
        lambda x, mask, alone: (block(x, mask=mask, positions="tokens"), block(alone)),
        *(X, REAL, ALONE),
    )
    assert_alone(found, expected)


def test_arrays_of_pairs_and_scores_are_in_the_order_of_the_inputs():
    layer, rng = ka.SelfAttention(2, 4, position="rotary"), np.random.default_rng(0)
    bias, mask = random(1, 2, 4, 4, seed=3), rng.random((1, 4, 4)) < 0.8
    wide, allowed = np.zeros((4, 2, T, T), "float32"), np.zeros((4, T, T), bool)
    for row, real in enumerate(REAL):
        wide[row][:, real[:, None] & real] = bias[0].reshape(2, -1)
        allowed[row][np.ix_(real, real)] = mask[0]
    given = {"attention_bias": wide, "attention_mask": allowed, "positions": "tokens"}
    output, weights = layer(X, mask=REAL, return_attention_scores=True, **given)
    alone = {"attention_bias": bias, "attention_mask": mask, "return_attention_scores": True}
    expected, right = layer(ALONE, **alone)
    assert_alone(output, expected)
    for row, real in zip(numpy(weights), REAL, strict=True):
        np.testing.assert_allclose(row[:, real][:, :, real], numpy(right)[0], atol=1e-5)
        assert not row[:, ~real].any() and not row[:, :, ~real].any()


@pytest.mark.parametrize("interleaved", [False, True])
def test_packed_texts_are_the_texts_alone(interleaved):
    texts = np.array([[3, 3, 3, 1, 1, 1, 1]] if not interleaved else [[3, 1, 3, 1, 1, 3, 1]])
    real, x = np.array([[1, 1, 0, 1, 1, 1, 1]], bool), random(1, T, D, seed=2)
    embeddings = ka.Embeddings(keras.layers.Dense(D), ka.SinCosPositionEmbedding())
    blocks = [
        ka.TransformerBlock(12, 2, causal=True, position=positions.FIRE(4)),
        ka.TransformerBlock(12, 2, causal=True, position="rotary"),
    ]
    stack = ka.Decoder(blocks, embeddings)
    found = numpy(stack(x, mask=real, segment_ids=texts))
    embedding = ka.SinCosPositionEmbedding()
    embedded = embedding(x, positions="tokens", segment_ids=texts, mask=real)
    for text in (1, 3):
        at = (texts == text) & real
        np.testing.assert_allclose(found[at], numpy(stack(x[at][None]))[0], atol=2e-5)
        np.testing.assert_allclose(numpy(embedded)[at], numpy(embedding(x[at][None]))[0], atol=1e-6)


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


def test_places_take_their_time_and_gradients_reach_no_padding():
    block = ka.TransformerBlock(12, 2, position="rotary")
    stack = ka.Encoder([block])
    by_places = stack(X, mask=REAL, positions="places")
    at = np.flatnonzero(REAL[2])[None]
    alone = block(ALONE, positions=at)
    np.testing.assert_allclose(numpy(by_places)[2][REAL[2]], numpy(alone)[0], atol=2e-5)
    assert np.abs(numpy(by_places)[2] - numpy(stack(X, mask=REAL))[2])[REAL[2]].max() > 1e-3
    layer = ka.SelfAttention(2, 4, causal=True, position="rotary")
    layer(ALONE)
    (found,) = gradients(lambda x: layer(x, mask=REAL, positions="tokens"), [padded(ALONE, 1e3)])
    (expected,) = gradients(lambda x: layer(x), [ALONE])
    assert_alone(found, expected)
    assert not numpy(found)[~REAL].any()


def test_a_layer_over_other_axes_counts_each_of_their_rows():
    layer = ka.MultiHeadAttention(2, 4, attention_axes=(2,), position="rotary")
    x, mask = np.stack([X, X[::-1]], 1), np.stack([REAL, REAL[::-1]], 1)
    found = numpy(layer(x, query_mask=mask, positions="tokens"))
    expected = numpy(layer(ALONE[:, None]))[:, 0]
    assert_alone(found[:, 0], expected)
    assert_alone(found[::-1, 1], expected)
