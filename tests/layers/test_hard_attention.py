"""Hard attention: what it draws, how often, and the two ways it learns."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from keras_attention import normalizations, patterns
from keras_attention.spec import AttentionSpec
from tests import definition
from tests.arrays import numpy, random
from tests.definition import softmax
from tests.gradients import added_losses, gradients, weight_gradients

B, T, S, D = 3, 5, 7, 8


QUERY, MEMORY = random(B, T, D, seed=1), random(B, S, D, seed=2)
KEPT = np.arange(S) < np.array([[S], [3], [0]])


@pytest.mark.parametrize("gradient", normalizations.GRADIENTS)
def test_training_draws_each_key_as_often_as_softmax_says(gradient):
    many = 4000
    query, memory = np.repeat(QUERY[:1, :1], many, 1), MEMORY[:1]
    layer = ka.HardAttention(gradient=gradient, seed=1)
    weights = numpy(layer(query, memory, training=True, return_attention_scores=True)[1])
    assert set(np.unique(weights)) == {0.0, 1.0}
    np.testing.assert_array_equal(weights.sum(-1), 1.0)
    expected = softmax(QUERY[0, 0] @ MEMORY[0].T / np.sqrt(D))
    # Four standard deviations of a share among `many` draws.
    error = 4 * np.sqrt(expected * (1 - expected) / many)
    assert (np.abs(weights.mean((0, 1, 2)) - expected) < error).all()


@pytest.mark.parametrize("gradient", normalizations.GRADIENTS)
def test_a_choice_is_never_masked_and_an_empty_row_chooses_nothing(gradient):
    layer = ka.HardAttention(2, 4, gradient=gradient, pattern=patterns.SlidingWindow(1, 1), seed=1)
    for _ in range(5):
        output, weights, *rest = layer(
            QUERY, MEMORY, value_mask=KEPT, training=True, return_attention_scores=True
        )
        near = np.abs(np.arange(T)[:, None] - np.arange(S)) <= 1
        allowed = (KEPT[:, None, None] & near) & np.ones((B, 2, T, S), bool)
        assert (numpy(weights)[~allowed] == 0).all()
        np.testing.assert_array_equal(numpy(weights).sum(-1), allowed.any(-1))
        assert (numpy(output)[2] == 0).all()
        for log_probability in rest:
            assert (numpy(log_probability)[~allowed.any(-1)] == 0).all()


def test_choices_are_reproducible_from_the_seed():
    def drawn(seed):
        layer, given = ka.HardAttention(seed=seed, score="dot"), {"return_attention_scores": True}
        return [numpy(layer(QUERY, MEMORY, training=True, **given)[1]) for _ in range(3)]

    first, again, other = map(drawn, (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.not_equal(first, other).any() and (first[0] != first[1]).any()


def chooses(hard):
    """What the kernel is given to choose by, in training."""
    return hard.into_spec(AttentionSpec(), training=True, seed=object()).normalization


def test_straight_through_gives_the_gradient_of_gumbel_softmax(monkeypatch):
    """With the noise known, the gradient is that of the softmax it was added to."""
    temperature, noise = 0.7, random(1, 1, T, S, seed=5)
    uniform = keras.ops.convert_to_tensor(np.exp(-np.exp(-noise)), "float32")
    monkeypatch.setattr(keras.random, "uniform", lambda *args: uniform)
    upstream = random(1, 1, T, S, seed=6)
    scores = random(1, 1, T, S, seed=7)
    hard = normalizations.Hard(temperature=temperature)
    found = gradients(
        lambda x: keras.ops.sum(chooses(hard)(x, None) * keras.ops.convert_to_tensor(upstream)),
        [scores],
    )[0]

    def soft(x):
        return float((softmax((x + noise) / temperature) * upstream).sum())

    expected = definition.gradients(soft, [scores])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_reinforce_returns_the_log_probability_of_its_choice():
    layer = ka.HardAttention(gradient="reinforce", seed=1)
    _, weights, log_probability = layer(QUERY, MEMORY, training=True, return_attention_scores=True)
    likely = np.log(softmax(np.einsum("btd,bsd->bts", QUERY, MEMORY) / np.sqrt(D)))[:, None]
    np.testing.assert_allclose(
        numpy(log_probability), (numpy(weights) * likely).sum(-1), rtol=1e-4, atol=1e-5
    )


# ReinforceLoss


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_the_loss_is_its_equation_and_the_baseline_follows_the_rewards(policy):
    """In float32 in every policy: float16 has no such numbers."""
    layer = ka.ReinforceLoss(factor=0.5, momentum=0.8, entropy_factor=0.1, dtype=policy)
    likely, baseline = -100 * np.abs(random(B, 2, T)), 0.0
    for seed in range(3):
        reward = 1e5 * random(B, seed=seed)
        output = layer(likely, reward, training=True)
        np.testing.assert_array_equal(numpy(output), likely)
        advantage = reward - 0.1 * likely.sum((1, 2))
        expected = -0.5 * np.mean((advantage - baseline) * likely.sum((1, 2)))
        np.testing.assert_allclose(numpy(layer.losses[0]), expected, rtol=1e-5)
        baseline = 0.8 * baseline + 0.2 * advantage.mean()
        np.testing.assert_allclose(numpy(layer.baseline), baseline, rtol=1e-5)
    layer(likely, reward)
    np.testing.assert_allclose(numpy(layer.baseline), baseline, rtol=1e-5)


def test_no_gradient_goes_into_the_reward():
    layer = ka.ReinforceLoss()
    layer.build((B, 2, T), (B,))

    def loss(likely, reward):
        return added_losses(lambda: layer(likely, reward))

    likely, reward = random(B, 2, T), random(B)
    of_likely, of_reward = gradients(loss, [likely, reward])
    np.testing.assert_allclose(of_likely, np.broadcast_to(-reward[:, None, None] / B, (B, 2, T)))
    np.testing.assert_array_equal(of_reward, 0.0)


def test_dropout_draws_other_numbers_than_the_choice():
    layer = ka.HardAttention(dropout=0.5, seed=1)
    ones = np.ones((64, 10, 4), "float32")
    dropped = numpy(layer(0 * ones, ones, training=True))[..., 0] == 0
    assert 0.35 < dropped.mean() < 0.65


# Learning


def test_weights_of_all_projections_learn_through_the_choice():
    layer = ka.HardAttention(2, 4, seed=1)
    layer.build(QUERY.shape, MEMORY.shape)
    found, _ = weight_gradients(layer, lambda: layer(QUERY, MEMORY, training=True))
    assert all(np.abs(gradient).max() > 0 for gradient in found)
