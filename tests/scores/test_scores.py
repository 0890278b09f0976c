"""Scores: the built-in ones against their equations, alone and in layers."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, ops, scores
from tests import definition
from tests.arrays import numpy, random
from tests.fuzz.configurations import defined_score
from tests.gradients import weight_gradients

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8
QUERY, KEY = random(B, T, H, K, seed=1), random(B, S, H, K, seed=2)
# What a score is made with where its name alone does not make one.
ARGUMENTS = {"reduced_rank": {"rank": 3}, "location": {"max_length": S + 2}}
# Those with weights. All are compared with their equations in tests/fuzz/test_attend.py.
LEARNED = ["general", "reduced_rank", "additive", "concat", "location", "key_only"]


def made(name, **kwargs):
    return scores.BUILTIN[name](**{**ARGUMENTS.get(name, {}), **kwargs})


def filled(score):
    """A built score with weights that no two of are alike, biases included."""
    score.set_weights([random(*w.shape, seed=20 + n) / 2 for n, w in enumerate(score.weights)])
    return score


@pytest.mark.parametrize("name", LEARNED)
def test_learned_scores_compare_unequal_sizes_in_layers(name):
    layer = Attention(score=made(name))
    query, key, value = random(B, T, D), random(B, S, 6, seed=1), random(B, S, 4, seed=2)
    symbolic = layer(keras.Input((T, D)), keras.Input((S, 4)), keras.Input((S, 6)))
    assert symbolic.shape == (None, T, 4)
    heads = [array[:, :, None] for array in (query, key, value)]
    expected, _ = definition.attend(*heads, **defined_score(filled(layer.score), 1))
    found = numpy(layer(query, value, key))
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LEARNED)
def test_huge_inputs_give_numbers_and_gradients_that_are_numbers(name):
    score, value = made(name), random(B, S, H, 3, seed=4)
    score.build(QUERY.shape, KEY.shape)
    filled(score)
    huge = [np.float32(3e37) * np.clip(array, -4, 4) for array in (QUERY, KEY)]

    def call(query, key):
        return ops.attend(query, key, value, score=score)

    assert np.isfinite(numpy(call(*huge))).all()
    of_weights, of_arrays = weight_gradients(score, call, huge)
    for gradient in (*of_weights, *of_arrays):
        assert np.isfinite(gradient).all()


def test_normalized_additive_does_not_depend_on_the_length_of_its_vector():
    score = scores.Additive(16, normalize=True)
    score.build(QUERY.shape, KEY.shape)
    np.testing.assert_allclose(numpy(score.length), np.full((H, 1), 0.25))
    expected = numpy(filled(score)(QUERY, KEY))
    for factor in (1e-20, 1e20):
        score.v.assign(score.v * factor)
        np.testing.assert_allclose(numpy(score(QUERY, KEY)), expected, rtol=1e-4, atol=1e-5)
        score.v.assign(score.v / factor)
    score.v.assign(0 * score.v)
    np.testing.assert_array_equal(numpy(score(QUERY, KEY)), 0)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="lengths of graphs")
@pytest.mark.parametrize("max_length", [1, 6])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_location_never_answers_where_its_length_shows_only_when_run(max_length, jit_compile):
    import tensorflow as tf

    # Sigmoid, since Keras warns of a softmax over one key.
    layer = Attention(score=scores.Location(max_length), normalization="sigmoid")
    layer.build((None, None, D), (None, None, D))
    signature = [tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None, D))]
    mask = tf.TensorSpec((None, None), "bool")
    call = tf.function(
        lambda query, value, mask: layer(query, value, value_mask=mask),
        [*signature, mask],
        autograph=False,
        jit_compile=jit_compile,
    )
    query = random(B, T, D)
    fits, longer = random(B, max_length, D), random(B, S, D)
    expected = numpy(layer(query, fits))
    found = call(query, fits, np.ones((B, max_length), bool))
    np.testing.assert_allclose(numpy(found), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        call(query, longer, np.ones((B, S), bool))
