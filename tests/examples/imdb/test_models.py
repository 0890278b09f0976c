"""The models of the IMDB example: padding, masks, evidence."""

import numpy as np
import pytest

import keras_attention
from examples.imdb import models as imdb_models
from examples.imdb import ngrams as imdb_ngrams
from examples.imdb import prediction as imdb_prediction
from examples.imdb import recipes as imdb_recipes
from examples.imdb import text as imdb_text
from tests.examples.imdb.runs import TEXTS, encoder, small_model


@pytest.mark.parametrize("name", imdb_recipes.RECIPES)
def test_padding_changes_nothing_and_gets_no_weight(name):
    model, encode = small_model(name)
    both = imdb_prediction.with_weights(model)
    for text in TEXTS:
        row = encode(text)
        alone, scores = both.predict_on_batch(imdb_text.pad([row]))
        assert not np.allclose(alone, 0.5, atol=1e-3)
        expected = imdb_prediction.place_weights(scores)
        for length in (len(row) + 1, 40, 700):
            padded, scores = both.predict_on_batch(imdb_text.pad([row], length))
            np.testing.assert_allclose(padded, alone, atol=2e-6)
            weights = imdb_prediction.place_weights(scores)
            assert not np.any(weights[:, len(row) :])
            np.testing.assert_allclose(weights[:, : len(row)], expected, atol=2e-6)


@pytest.mark.parametrize("name", imdb_recipes.RECIPES)
def test_no_layer_drops_a_mask(name):
    assert not keras_attention.check_masks(small_model(name)[0])


def test_best_without_attention_weighs_all_words_alike():
    encode = encoder(TEXTS * 2, "best")
    ratios = np.random.default_rng(0).normal(size=encode.size)
    model = imdb_models.build(imdb_recipes.RECIPES["best"], encode.size, ratios, attend=False)
    _, scores = imdb_prediction.with_weights(model).predict_on_batch(encode(TEXTS[1])[None])
    np.testing.assert_allclose(scores, 1 / 5, rtol=1e-5)


def test_evidence_of_an_unknown_word_is_none():
    model, encode = small_model("best")
    ratio = model.get_layer("log_ratio").get_weights()[0]
    # Column 0 is the word: what an unknown word has in the others is the number of no n-gram.
    assert not encode("zyxxy zyxxy")[:, 1:].any()
    learned = imdb_ngrams.log_ratios([encode(t) for t in TEXTS], [1, 0, 1], encode.size)
    assert learned[0] == 0 and ratio.shape == (encode.size, 1)
