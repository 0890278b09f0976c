"""`Encoder`, `Decoder`, `EncoderDecoder`: what they compute, save and generate."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention.sequences import masks
from tests.arrays import numpy
from tests.models.stacks import IDS, LEFT, VOCABULARY, D, embeddings, made, output, randomize


def test_an_encoder_is_its_parts():
    model, ids = made("encoder")
    parts = model.embeddings
    x = parts.positions(parts.tokens(ids))
    for block in model.blocks:
        x = block(x, mask=ids != 0)
    np.testing.assert_allclose(numpy(model(ids)), numpy(x), atol=1e-5)
    assert (numpy(masks.implicit(model(ids))) == (ids != 0)).all()


def test_blocks_share_a_table_of_positions():
    model, _ = made("encoder")
    names = [w.path for w in model.trainable_variables if "relative_bias" in w.path]
    assert len(names) == 1


def test_a_block_that_is_listed_twice_has_its_weights_once():
    block = ka.TransformerBlock(16, 3)
    once, twice = ka.Encoder([block]), ka.Encoder([block, block])
    x = np.random.default_rng(0).normal(size=(2, 4, D)).astype("float32")
    np.testing.assert_allclose(numpy(twice(x)), numpy(once(once(x))), atol=1e-5)
    assert len(twice.weights) == len(once.weights)


EMBEDDINGS = {
    "types": lambda: {
        "types": keras.layers.Embedding(2, 4),
        "projection": keras.layers.Dense(D),
    },
    "projected before": lambda: {
        "positions": ka.SinCosPositionEmbedding(),
        "token_projection": keras.layers.Dense(D),
    },
    # Features of positions are added, which the norm and the projection get.
    "concatenated": lambda: {
        "positions": ka.SinCosPositionEmbedding(dim=3, merge_mode="concat"),
        "norm": keras.layers.LayerNormalization(),
        "projection": keras.layers.Dense(D),
    },
    "concatenated alone": lambda: {
        "positions": ka.SinCosPositionEmbedding(dim=3, merge_mode="concat")
    },
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_are_their_parts_in_order(name):
    model = embeddings(ka.ScaledEmbedding(VOCABULARY, 4, scale=1), **EMBEDDINGS[name]())
    model.build((None, 5))
    types = None if model.types is None else np.array([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]])
    found, x = model(IDS, types), model.tokens(IDS)
    x = x if model.token_projection is None else model.token_projection(x)
    x = x if types is None else x + model.types(types)
    for part in (model.positions, model.norm, model.projection):
        x = x if part is None else part(x)
    np.testing.assert_allclose(numpy(found), numpy(x), atol=1e-6)
    symbols = keras.Input((None,), dtype="int32")
    assert model(symbols).shape == (None, None, x.shape[-1])
    assert ka.Encoder([ka.TransformerBlock(12, 1)], model)(symbols).shape[-1] == x.shape[-1]
    # Without types, all are of the first.
    if types is not None:
        np.testing.assert_allclose(numpy(model(IDS))[1], numpy(found)[1], atol=1e-6)


class Short(ka.Encoder):
    """A subclass whose call has fewer arguments."""

    def call(self, x, mask=None, training=None):
        return super().call(x, mask=mask, training=training)


def test_a_subclass_with_fewer_arguments_in_a_functional_model():
    symbols = keras.Input((None, D))
    whole = keras.Model(symbols, Short([ka.TransformerBlock(12, 2)])(symbols))
    assert whole.output_shape == (None, None, D)


def test_logits_are_their_equation():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, D)).astype("float32")
    table = rng.normal(size=(VOCABULARY, D)).astype("float32")
    layer = ka.Logits(VOCABULARY, use_bias=True, scale=0.5, soft_cap=2.0)
    layer(x, table)
    randomize(layer)
    expected = 2 * np.tanh((0.5 * x @ table.T + numpy(layer.bias)) / 2)
    np.testing.assert_allclose(numpy(layer(x, table)), expected, atol=1e-5)


def greedily(model, prompt, count):
    """Tokens by the whole model, again for each."""
    for _ in range(count):
        logits = output(model, prompt)[:, -1]
        prompt = np.concatenate([prompt, logits.argmax(-1)[:, None].astype("int32")], axis=1)
    return prompt[:, -count:]


def assert_same_until_padding(found, expected):
    """Token 0 is padding for the whole model, and a token for a step."""
    for row, other in zip(found, expected, strict=True):
        tokens = other.tolist()
        length = tokens.index(0) + 1 if 0 in tokens else len(tokens)
        assert row.tolist()[:length] == tokens[:length]


@pytest.mark.parametrize("prompt", [LEFT, IDS[:, :1]], ids=["padded on the left", "one token"])
def test_a_language_model_generates_what_the_whole_model_says(prompt):
    model, _ = made("decoder")
    last, cache = model.start(prompt, max_tokens=3)
    found = ka.generation.greedy(model.step, last, cache, max_tokens=3)
    assert_same_until_padding(numpy(found.tokens), greedily(model, prompt, 3))


def test_a_translator_generates_what_the_whole_model_says():
    model, (source, _) = made("both")
    first = np.ones((2, 1), "int32")
    last, cache, memory = model.start(source, first, max_tokens=3)
    found = ka.generation.greedy(model.step, last, cache, max_tokens=3, memory=memory)
    expected = first
    for _ in range(3):
        logits = output(model, source, expected)[:, -1]
        expected = np.concatenate([expected, logits.argmax(-1)[:, None]], axis=1).astype("int32")
    assert_same_until_padding(numpy(found.tokens), expected[:, 1:])


@pytest.mark.ci
def test_rows_of_a_prompt_may_be_traced():
    model, _ = made("decoder")

    def last(tokens):
        return model.start([[tokens[0], tokens[1], 3]], 2)[0], model.start([tokens], 2)[0]

    found = ka.generation.compiled(last, model)(np.array([1, 2, 4], "int32"))
    assert [int(token) for (token,) in map(numpy, found)] == [3, 4]
