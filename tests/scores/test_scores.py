"""Scores: the built-in ones against their equations, alone and in layers."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, ops, scores
from tests import definition
from tests.arrays import numpy, random
from tests.gradients import weight_gradients
from tests.scores.built_in import (
    KEY,
    LEARNED,
    ONE_EACH,
    QUERY,
    UNEQUAL,
    B,
    D,
    H,
    K,
    S,
    T,
    by_definition,
    fill,
    learned,
    make,
    named_weights,
)


@pytest.mark.parametrize(
    "score, name, scale",
    [
        (scores.Dot(), "dot", None),
        (scores.ScaledDot(), "scaled_dot", None),
        (scores.ScaledDot(scale=0.3), "scaled_dot", 0.3),
        (scores.Cosine(), "cosine", None),
        (scores.Cosine(scale=5), "cosine", 5.0),
    ],
)
def test_score_is_its_equation(score, name, scale):
    np.testing.assert_allclose(
        numpy(score(QUERY, KEY)), by_definition(QUERY, KEY, name, scale), rtol=1e-5, atol=1e-6
    )


def test_general_is_its_equation_with_a_matrix_a_head_and_unequal_sizes():
    key = random(B, S, H, 3, seed=3)
    score, matrix = scores.General("zeros"), random(H, K, 3, seed=4)
    score.build(QUERY.shape, key.shape)
    score.set_weights([matrix])
    found = score(QUERY, key)
    np.testing.assert_allclose(
        numpy(found), by_definition(QUERY, key, "general", matrix=matrix), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("case", LEARNED)
def test_a_learned_score_is_its_equation(case):
    score, name, key = learned(case)
    expected = by_definition(QUERY, key, name, **named_weights(score))
    np.testing.assert_allclose(numpy(score(QUERY, key)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", UNEQUAL)
def test_learned_scores_compare_unequal_sizes_in_layers(name):
    layer = Attention(score=make(name))
    query, key, value = random(B, T, D), random(B, S, 6, seed=1), random(B, S, 4, seed=2)
    symbolic = layer(keras.Input((T, D)), keras.Input((S, 4)), keras.Input((S, 6)))
    assert symbolic.shape == (None, T, 4)
    fill(layer.score)
    heads = [array[:, :, None] for array in (query, key, value)]
    expected, _ = definition.attend(*heads, score=name, **named_weights(layer.score))
    found = numpy(layer(query, value, key))
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
def test_sizes_that_cannot_be_compared_are_refused(name):
    message = rf"features that {type(scores.get(name)).__name__} compares must be equal.*8.*6"
    with pytest.raises(ValueError, match=message):
        Attention(score=name)(random(B, T, D), random(B, S, 6))
    with pytest.raises(ValueError, match=message):
        Attention(score=name)(keras.Input((T, D)), keras.Input((S, 6)))
    # With projections both have key_dim features.
    assert Attention(H, K, score=name)(random(B, T, D), random(B, S, 6)).shape == (B, T, H * K)


@pytest.mark.parametrize("case", ONE_EACH)
def test_huge_inputs_give_numbers_and_gradients_that_are_numbers(case):
    score, _, key = learned(case)
    value = random(B, S, H, 3, seed=4)
    huge = [np.float32(3e37) * np.clip(array, -4, 4) for array in (QUERY, key)]

    def call(query, key):
        return ops.attend(query, key, value, score=score)

    assert np.isfinite(numpy(call(*huge))).all()
    of_weights, of_arrays = weight_gradients(score, call, huge)
    for gradient in (*of_weights, *of_arrays):
        assert np.isfinite(gradient).all()


def test_normalized_additive_does_not_depend_on_the_length_of_its_vector():
    score, _, key = learned("additive, normalized")
    expected = numpy(score(QUERY, key))
    for factor in (1e-20, 1e20):
        score.v.assign(score.v * factor)
        np.testing.assert_allclose(numpy(score(QUERY, key)), expected, rtol=1e-4, atol=1e-5)
        score.v.assign(score.v / factor)
    score.v.assign(0 * score.v)
    np.testing.assert_array_equal(numpy(score(QUERY, key)), 0)


def test_normalized_additive_starts_with_a_vector_of_length_one_over_the_root_of_units():
    score = scores.Additive(16, normalize=True)
    score.build(QUERY.shape, KEY.shape)
    np.testing.assert_allclose(numpy(score.length), np.full((H, 1), 0.25))


# Location


def test_location_refuses_more_keys_than_it_has_columns():
    message = r"at most max_length=6 keys\. Received: 7"
    layer = Attention(score=scores.Location(6))
    for arguments in (
        (random(B, T, D), random(B, S, D)),
        (keras.Input((T, D)), keras.Input((S, D))),
    ):
        with pytest.raises(ValueError, match=message):
            layer(*arguments)
    layer = Attention(score=scores.Location(6))
    assert layer(random(B, T, D), random(B, 6, D)).shape == (B, T, D)
    with pytest.raises(ValueError, match=message):
        layer(random(B, T, D), random(B, S, D))


@pytest.mark.parametrize("max_length", [1, 6])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_location_never_answers_where_its_length_shows_only_when_run(max_length, jit_compile):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Only TensorFlow's graphs have lengths that are not known.")
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
