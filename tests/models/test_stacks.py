"""`Encoder`, `Decoder` and `Embeddings`, beside models of `transformers` in tests/convert."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from tests.arrays import numpy
from tests.models.stacks import randomize

IDS = np.array([[3, 5, 2, 9, 4], [7, 8, 1, 0, 0]], "int32")
D = 12


@pytest.mark.parametrize("alone", [True, False])
def test_features_of_positions_that_are_added(alone):
    """The norm and the projection get them too."""
    tokens = ka.ScaledEmbedding(20, 4, mask_zero=True, scale=1)
    positions = ka.SinCosPositionEmbedding(dim=3, merge_mode="concat")
    after = [] if alone else [keras.layers.LayerNormalization(), keras.layers.Dense(D)]
    parts = dict(zip(("norm", "projection"), after, strict=False))
    model = ka.Embeddings(tokens, positions, **parts)
    model.build((None, 5))
    found, x = model(IDS), tokens(IDS)
    for part in (positions, *after):
        x = part(x)
    np.testing.assert_allclose(numpy(found), numpy(x), atol=1e-6)
    symbols = keras.Input((None,), dtype="int32")
    assert model(symbols).shape == (None, None, x.shape[-1])
    assert ka.Encoder([ka.TransformerBlock(12, 1)], model)(symbols).shape[-1] == x.shape[-1]


def test_a_block_that_is_listed_twice_has_its_weights_once():
    block = ka.TransformerBlock(16, 3)
    once, twice = ka.Encoder([block]), ka.Encoder([block, block])
    x = np.random.default_rng(0).normal(size=(2, 4, D)).astype("float32")
    np.testing.assert_allclose(numpy(twice(x)), numpy(once(once(x))), atol=1e-5)
    assert len(twice.weights) == len(once.weights)


class Short(ka.Encoder):
    """A subclass whose call has fewer arguments."""

    def call(self, x, mask=None, training=None):
        return super().call(x, mask=mask, training=training)


def test_a_subclass_with_fewer_arguments_in_a_functional_model():
    symbols = keras.Input((None, D))
    whole = keras.Model(symbols, Short([ka.TransformerBlock(12, 2)])(symbols))
    assert whole.output_shape == (None, None, D)


@pytest.mark.ci
def test_rows_of_a_prompt_may_be_traced():
    embeddings = ka.Embeddings(ka.ScaledEmbedding(20, D, mask_zero=True))
    model = ka.Decoder([ka.TransformerBlock(16, 3, causal=True)], embeddings, logits=ka.Logits(20))
    model.build(IDS.shape)

    def last(tokens):
        return model.start([[tokens[0], tokens[1], 3]], 2)[0], model.start([tokens], 2)[0]

    found = ka.generation.compiled(last, model)(np.array([1, 2, 4], "int32"))
    assert [int(token) for (token,) in map(numpy, found)] == [3, 4]


def test_a_text_goes_on_from_a_cache():
    """Of one row that all begin with, and of rows that were read before, which outgrow it."""
    window = ka.patterns.SlidingWindow(2, 0)
    blocks = [ka.TransformerBlock(16, 3, causal=True, pattern=x) for x in (None, window)]
    embeddings = ka.Embeddings(ka.ScaledEmbedding(20, D), ka.LearnedPositionEmbedding(9))
    model = ka.Decoder(blocks, embeddings, logits=ka.Logits(20))
    model.build((None, None))
    randomize(model)
    text = np.array([[3, 5, 2, 9, 4, 6, 1, 8, 7], [3, 5, 2, 1, 1, 7, 9, 8, 2]], "int32")
    whole = numpy(model(text))
    _, cache = model(text[:1, :3], cache=model.make_cache(1, 3))
    for first, end in ((3, 5), (5, 9)):
        last, cache = model.start(text[:, first:end], max_tokens=1, cache=cache)
        np.testing.assert_array_equal(numpy(last), text[:, end - 1])
        logits, cache = model.step(last, cache)
        np.testing.assert_allclose(numpy(logits), whole[:, end - 1], atol=1e-4)
    assert cache[0]["key"].shape[2] == 9
    with pytest.raises(ValueError, match="a prompt of 1 tokens after 9 of a cache"):
        model.start(text[:, :1], max_tokens=1, cache=cache)
