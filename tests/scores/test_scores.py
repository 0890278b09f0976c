"""Scores: the built-in ones against their equations, alone and in layers."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, ops, scores
from tests import definition
from tests.arrays import numpy, random
from tests.gradients import weight_gradients

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8
QUERY, KEY = random(B, T, H, K, seed=1), random(B, S, H, K, seed=2)
# What a score is made with where its name alone does not make one.
ARGUMENTS = {"reduced_rank": {"rank": 3}, "location": {"max_length": S + 2}}
# Names, arguments, and the features of a key.
CASES = [
    ("dot", {}, K),
    ("scaled_dot", {}, K),
    ("scaled_dot", {"scale": 0.3}, K),
    ("cosine", {}, K),
    ("cosine", {"scale": 5}, K),
    ("general", {}, 3),
    ("reduced_rank", {}, 3),
    ("reduced_rank", {"rank": 1}, K),
    ("additive", {}, 3),
    ("additive", {"units": 5}, K),
    ("additive", {"units": 5, "use_bias": False}, K),
    ("additive", {"units": 6, "normalize": True}, 3),
    ("concat", {}, K),
    ("concat", {"units": 5}, 3),
    ("location", {}, 3),
    ("location", {"max_length": S}, K),
    ("key_only", {}, 3),
    ("key_only", {"units": 5}, 3),
    ("key_only", {"use_bias": False}, K),
]
NORMALIZED = CASES[11]
# One case of each score with weights, where the arguments make no difference to what is tested.
ONE_EACH = [CASES[n] for n in (5, 6, 11, 13, 14, 17)]
LEARNED = [name for name, _, _ in ONE_EACH]


def made(name, **kwargs):
    return scores.BUILTIN[name](**{**ARGUMENTS.get(name, {}), **kwargs})


def filled(score):
    """A built score with weights that no two of are alike, biases included."""
    score.set_weights([random(*w.shape, seed=20 + n) / 2 for n, w in enumerate(score.weights)])
    return score


def built(case):
    """A score, and a key for it."""
    name, arguments, size = case
    score, key = made(name, **arguments), random(B, S, H, size, seed=3)
    score.build(QUERY.shape, key.shape)
    return filled(score), key


def named_weights(score):
    """A score's weights for `definition`, by head."""
    found = {weight.name: numpy(weight).astype("float64") for weight in score.weights}
    if isinstance(score, scores.General):
        return {"matrix": found["kernel"]}
    return {"weights": found} if found else {}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_score_is_its_equation(case):
    score, key = built(case)
    found, expected = numpy(score(QUERY, key)), np.zeros((B, H, T, S))
    weights = named_weights(score)
    for b, h, t, s in np.ndindex(expected.shape):
        expected[b, h, t, s] = definition.pair_score(
            QUERY[b, t, h].astype("float64"),
            key[b, s, h].astype("float64"),
            case[0],
            case[1].get("scale"),
            weights["matrix"][h] if "matrix" in weights else None,
            definition.of_head(weights.get("weights"), h),
            s,
        )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LEARNED)
def test_learned_scores_compare_unequal_sizes_in_layers(name):
    layer = Attention(score=made(name))
    query, key, value = random(B, T, D), random(B, S, 6, seed=1), random(B, S, 4, seed=2)
    symbolic = layer(keras.Input((T, D)), keras.Input((S, 4)), keras.Input((S, 6)))
    assert symbolic.shape == (None, T, 4)
    heads = [array[:, :, None] for array in (query, key, value)]
    expected, _ = definition.attend(*heads, score=name, **named_weights(filled(layer.score)))
    found = numpy(layer(query, value, key))
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
def test_sizes_that_cannot_be_compared_are_refused(name):
    message = rf"features that {type(scores.get(name)).__name__} compares must be equal.*8.*6"
    for given in (
        (random(B, T, D), random(B, S, 6)),
        (keras.Input((T, D)), keras.Input((S, 6))),
    ):
        with pytest.raises(ValueError, match=message):
            Attention(score=name)(*given)
        # With projections both have key_dim features.
        assert Attention(H, K, score=name)(*given).shape[1:] == (T, H * K)


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_huge_inputs_give_numbers_and_gradients_that_are_numbers(case):
    score, key = built(case)
    value = random(B, S, H, 3, seed=4)
    huge = [np.float32(3e37) * np.clip(array, -4, 4) for array in (QUERY, key)]

    def call(query, key):
        return ops.attend(query, key, value, score=score)

    assert np.isfinite(numpy(call(*huge))).all()
    of_weights, of_arrays = weight_gradients(score, call, huge)
    for gradient in (*of_weights, *of_arrays):
        assert np.isfinite(gradient).all()


def test_normalized_additive_does_not_depend_on_the_length_of_its_vector():
    score, key = built(NORMALIZED)
    expected = numpy(score(QUERY, key))
    for factor in (1e-20, 1e20):
        score.v.assign(score.v * factor)
        np.testing.assert_allclose(numpy(score(QUERY, key)), expected, rtol=1e-4, atol=1e-5)
        score.v.assign(score.v / factor)
    score.v.assign(0 * score.v)
    np.testing.assert_array_equal(numpy(score(QUERY, key)), 0)
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
