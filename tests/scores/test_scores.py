"""Scores: learned ones in layers, huge numbers, lengths, weights, and scores of a user's own.

All are compared with their equations in tests/fuzz/test_attend.py.
"""

import functools

import keras
import numpy as np
import pytest

from keras_attention import Attention, TransformerBlock, normalizations, ops, positions, scores
from tests import definition
from tests.arrays import numpy, random, randomize
from tests.contract import places, registry
from tests.fuzz.configurations import defined_score
from tests.gradients import weight_gradients

B, T, S, H, K, D = 3, 5, 7, 2, 4, 8
QUERY, KEY = random(B, T, H, K, seed=1), random(B, S, H, K, seed=2)
# Those with weights.
LEARNED = ["general", "reduced_rank", "additive", "concat", "location", "key_only"]


def made(name, **given):
    return registry.made(scores.BUILTIN[name], **given)


@pytest.mark.parametrize("name", LEARNED)
def test_learned_scores_compare_unequal_sizes_in_layers(name):
    layer = Attention(score=made(name))
    query, key, value = random(B, T, D), random(B, S, 6, seed=1), random(B, S, 4, seed=2)
    symbolic = layer(keras.Input((T, D)), keras.Input((S, 4)), keras.Input((S, 6)))
    assert symbolic.shape == (None, T, 4)
    heads = [array[:, :, None] for array in (query, key, value)]
    randomize(layer.score)
    expected, _ = definition.attend(*heads, **defined_score(layer.score, 1))
    found = numpy(layer(query, value, key))
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LEARNED)
def test_huge_inputs_give_numbers_and_gradients_that_are_numbers(name):
    score, value = made(name), random(B, S, H, 3, seed=4)
    score.build(QUERY.shape, KEY.shape)
    randomize(score)
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
    randomize(score)
    expected = numpy(score(QUERY, KEY))
    for factor in (1e-20, 1e20):
        score.v.assign(score.v * factor)
        np.testing.assert_allclose(numpy(score(QUERY, KEY)), expected, rtol=1e-4, atol=1e-5)
        score.v.assign(score.v / factor)
    score.v.assign(0 * score.v)
    np.testing.assert_array_equal(numpy(score(QUERY, KEY)), 0)


def test_learned_scales_of_cosines_are_of_heads_and_clipped():
    score = scores.Cosine(2.0, max_scale=5.0)
    score.build(QUERY.shape, KEY.shape)
    np.testing.assert_allclose(np.exp(numpy(score.log_scale)), np.full(H, 2.0), rtol=1e-6)
    score.log_scale.assign(np.log([3.0, 50.0]))
    lengths = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (QUERY, KEY)]
    expected = np.einsum("bthk,bshk->bhts", QUERY / lengths[0], KEY / lengths[1])
    expected = expected * np.array([3.0, 5.0])[:, None, None]
    np.testing.assert_allclose(numpy(score(QUERY, KEY)), expected, rtol=1e-4, atol=1e-5)
    assert_softmax(score, expected)
    (gradient,), _ = weight_gradients(score, lambda: score(QUERY, KEY)[..., :3])
    np.testing.assert_allclose(gradient, [expected[:, 0, :, :3].sum(), 0], rtol=1e-4, atol=1e-4)


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


BIAS = {
    "bias_initializer": "ones",
    "bias_regularizer": keras.regularizers.L1(0.02),
    "bias_constraint": keras.constraints.UnitNorm(),
}


@pytest.mark.parametrize("name", LEARNED)
def test_initializers_regularizers_and_constraints_reach_the_weights(name):
    biased = name in ("additive", "key_only")
    given = {
        "kernel_initializer": keras.initializers.Constant(-0.5),
        "kernel_regularizer": keras.regularizers.L2(0.1),
        "kernel_constraint": keras.constraints.NonNeg(),
        **(BIAS if biased else {}),
    }
    layer = Attention(score=made(name, **given))
    layer.build((B, T, D), (B, S, 6))
    for weight in layer.score.weights:
        kind = "bias" if weight.name == "bias" else "kernel"
        assert weight.regularizer is given[f"{kind}_regularizer"]
        assert weight.constraint is given[f"{kind}_constraint"]
        np.testing.assert_array_equal(numpy(weight), 1.0 if kind == "bias" else -0.5)
    assert len(layer.losses) == len(layer.trainable_weights) == len(layer.score.weights)


# Scores of a user's own


@keras.saving.register_keras_serializable(package="test_scores")
class Distance(scores.Score):
    """Looks at each pair, and owns nothing."""

    def __init__(self, sharpness, **kwargs):
        super().__init__(**kwargs)
        self.sharpness = sharpness

    def call(self, query, key):
        squares = keras.ops.square(query[:, :, None] - key[:, None])
        return -self.sharpness * keras.ops.transpose(keras.ops.sum(squares, -1), (0, 3, 1, 2))


def assert_softmax(score, expected):
    """The weights of a function with a score are the softmax of what is expected of it."""
    value = random(B, S, H, 3, seed=4)
    _, weights = ops.attend(QUERY, KEY, value, score=score, return_attention_scores=True)
    np.testing.assert_allclose(numpy(weights), definition.softmax(expected), rtol=1e-4, atol=1e-6)


def test_a_score_of_ones_own_is_what_it_says():
    squares = np.square(QUERY[:, :, None] - KEY[:, None]).sum(-1)
    assert_softmax(Distance(0.7), -0.7 * squares.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("base", [scores.Dot, scores.ScaledDot, scores.Cosine, scores.General])
def test_compare_of_a_subclass_may_change_the_scores_of_its_base(base):
    class Halved(base):
        def compare(self, query, key):
            return super().compare(query, key) / 2

    halved, whole = Halved(), base()
    for score in (halved, whole):
        score.build(QUERY.shape, KEY.shape)
        score.set_weights([random(*weight.shape, seed=5) for weight in score.weights])
    expected = numpy(whole(QUERY, KEY)) / 2
    np.testing.assert_allclose(numpy(halved(QUERY, KEY)), expected, rtol=1e-4, atol=1e-5)
    assert_softmax(halved, expected)


def test_slots_of_ones_own_work_in_float32_under_mixed_precision():
    seen = []

    def see(*arrays):
        seen.extend(keras.backend.standardize_dtype(array.dtype) for array in arrays)

    class OnPairs(scores.Score):
        def build(self, query_shape, key_shape):
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, query, key):
            see(query, key, keras.ops.multiply(self.scale, 1.0))
            return keras.ops.einsum("bthk,bshk->bhts", query, key)

    class OnEachSide(OnPairs):
        call = scores.Score.call

        def prepare(self, query, key):
            see(query, key, keras.ops.multiply(self.scale, 1.0))
            return query, key

    class Positioned(positions.RelativeBias):
        def bias(self, i, j, num_heads):
            found = super().bias(i, j, num_heads)
            see(found)
            return found

    class Normalized(normalizations.Normalization):
        def normalize(self, scores, mask):
            see(scores)
            return keras.ops.softmax(scores)

    for make, slot in (
        (Attention, {"score": OnPairs()}),
        (Attention, {"score": OnEachSide()}),
        (functools.partial(TransformerBlock, 16, H), {"score": OnEachSide()}),
        (Attention, {"position": Positioned()}),
        (Attention, {"normalization": Normalized()}),
    ):
        output = make(**slot, dtype="mixed_bfloat16")(random(B, T, D))
        assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
        assert set(seen) == {"float32"}
        seen.clear()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_score_made_under_a_global_mixed_policy_is_float32(policy):
    with places.policy(policy):
        made = Attention(score="general").score, scores.Dot()
    assert {score.compute_dtype for score in made} == {"float32"}
