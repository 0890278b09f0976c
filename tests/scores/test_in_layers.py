"""Scores in layers: what they compare there, and in which precision."""

import keras
import numpy as np
import pytest

from keras_attention import Attention, scores
from tests import definition
from tests.arrays import numpy, random
from tests.scores.built_in import UNEQUAL, B, D, H, K, S, T, fill, make, named_weights


@pytest.mark.parametrize("name", scores.BUILTIN)
def test_attention_without_projections_compares_the_inputs(name):
    layer = Attention(score=make(name))
    query, value = random(B, T, K, seed=1), random(B, S, K, seed=2)
    layer.build(query.shape, value.shape)
    fill(layer.score)
    output, weights = layer(query, value, return_attention_scores=True)
    heads = query[:, :, None], value[:, :, None], value[:, :, None]
    expected, expected_weights = definition.attend(*heads, score=name, **named_weights(layer.score))
    np.testing.assert_allclose(numpy(output), expected[:, :, 0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(numpy(weights), expected_weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
def test_sizes_that_cannot_be_compared_are_refused(name):
    message = rf"features that {type(scores.get(name)).__name__} compares must be equal.*8.*6"
    with pytest.raises(ValueError, match=message):
        Attention(score=name)(random(B, T, D), random(B, S, 6))
    with pytest.raises(ValueError, match=message):
        Attention(score=name)(keras.Input((T, D)), keras.Input((S, 6)))
    # With projections both have key_dim features.
    assert Attention(H, K, score=name)(random(B, T, D), random(B, S, 6)).shape == (B, T, H * K)


@pytest.mark.parametrize("name", UNEQUAL)
def test_learned_scores_compare_unequal_sizes(name):
    layer = Attention(score=make(name))
    query, key, value = random(B, T, D), random(B, S, 6, seed=1), random(B, S, 4, seed=2)
    symbolic = layer(keras.Input((T, D)), keras.Input((S, 4)), keras.Input((S, 6)))
    assert symbolic.shape == (None, T, 4)
    fill(layer.score)
    heads = [array[:, :, None] for array in (query, key, value)]
    expected, _ = definition.attend(*heads, score=name, **named_weights(layer.score))
    found = numpy(layer(query, value, key))
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=1e-4, atol=1e-5)


def test_the_weight_of_general_counts_as_the_layers_own():
    score = scores.General(kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.5))
    layer = Attention(score=score)
    layer.build((B, T, D), (B, S, 6))
    assert [weight.path.split("/")[-1] for weight in layer.trainable_weights] == ["kernel"]
    np.testing.assert_allclose(numpy(sum(layer.losses)), 0.5 * D * 6, rtol=1e-6)


# Precision


@pytest.mark.parametrize(
    "name, dtype", [*((name, "bfloat16") for name in scores.BUILTIN), ("scaled_dot", "float16")]
)
def test_scores_stay_float32_in_mixed_precision(name, dtype):
    layer = Attention(score=make(name), dtype=f"mixed_{dtype}")
    # Scores near 100, which bfloat16 would round to halves.
    query, value = 8 * random(B, T, K, seed=1), 8 * random(B, S, K, seed=2)
    query, value = (keras.ops.cast(x, dtype) for x in (query, value))
    output, weights = layer(query, value, return_attention_scores=True)
    assert layer.score.compute_dtype == layer.score.variable_dtype == "float32"
    query, value = (numpy(keras.ops.cast(x, "float32"))[:, :, None] for x in (query, value))
    expected, expected_weights = definition.attend(
        query, value, value, score=name, **named_weights(layer.score)
    )
    close = {"rtol": 2**-8 if dtype == "bfloat16" else 2**-10, "atol": 1e-4}
    found = [numpy(keras.ops.cast(x, "float32")) for x in (output, weights)]
    np.testing.assert_allclose(found[0], expected[:, :, 0], **close)
    np.testing.assert_allclose(found[1], expected_weights, **close)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_score_made_under_a_global_mixed_policy_is_float32(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        score = Attention(score="general").score
        made = scores.Dot()
    finally:
        keras.config.set_dtype_policy(before)
    assert score.compute_dtype == made.compute_dtype == "float32"
